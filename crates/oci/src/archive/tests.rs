use std::fs;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::*;

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn config(layers: &[&[u8]]) -> Vec<u8> {
    let ids: Vec<String> = layers.iter().map(|l| format!("sha256:{}", hex(l))).collect();
    serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {"User": "app"}, "rootfs": {"diff_ids": ids}
    })
    .to_string()
    .into_bytes()
}

type Files = Vec<(String, Vec<u8>)>;

fn blob(bytes: &[u8]) -> (String, Vec<u8>) {
    (format!("blobs/sha256/{}", hex(bytes)), bytes.to_vec())
}

fn descriptor(bytes: &[u8], platform: Option<&str>) -> serde_json::Value {
    let mut value = serde_json::json!({
        "mediaType": "application/x", "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len()
    });
    if let Some(architecture) = platform {
        value["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
    }
    value
}

fn index_of(manifests: Vec<serde_json::Value>) -> Vec<u8> {
    serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string().into_bytes()
}

/// The files of an image layout with two layers, and its manifest.
fn layout(platform: Option<&str>) -> (Files, Vec<u8>) {
    let layers: [&[u8]; 2] = [b"lower layer", b"upper layer"];
    let config = config(&layers);
    let manifest = serde_json::json!({
        "schemaVersion": 2, "config": descriptor(&config, None),
        "layers": layers.map(|l| descriptor(l, None))
    })
    .to_string()
    .into_bytes();
    let mut files = vec![blob(&config), blob(&manifest), blob(layers[0]), blob(layers[1])];
    files.push(("index.json".to_owned(), index_of(vec![descriptor(&manifest, platform)])));
    (files, manifest)
}

fn docker() -> Files {
    let layers: [&[u8]; 2] = [b"lower layer", b"upper layer"];
    let saved =
        serde_json::json!([{"Config": "c.json", "RepoTags": null, "Layers": ["1/layer.tar", "2/layer.tar"]}]);
    vec![
        ("manifest.json".to_owned(), saved.to_string().into_bytes()),
        ("c.json".to_owned(), config(&layers)),
        ("1/layer.tar".to_owned(), layers[0].to_vec()),
        ("2/layer.tar".to_owned(), layers[1].to_vec()),
    ]
}

fn tar(files: &Files, at: &Path) -> PathBuf {
    let path = at.join("image.tar");
    let mut archive = tar::Builder::new(File::create(&path).unwrap());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &content[..]).unwrap();
    }
    archive.finish().unwrap();
    path
}

fn folder(files: &Files, at: &Path) -> PathBuf {
    let root = at.join("layout");
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn read_tar(files: &Files) -> Result<ContainerImage, OciError> {
    let at = tempfile::tempdir().unwrap();
    let image = read(&tar(files, at.path()), at.path());
    check_layers(&image);
    image
}

/// While the cache is there.
fn check_layers(image: &Result<ContainerImage, OciError>) {
    if let Ok(image) = image {
        let content: Vec<_> = image.layers.iter().map(|l| fs::read(l).unwrap()).collect();
        assert_eq!(content, [b"lower layer", b"upper layer"]);
        assert_eq!(image.settings.user.as_deref(), Some("app"));
    }
}

#[test]
fn every_form_gives_the_layers_in_order() {
    let at = tempfile::tempdir().unwrap();
    read_tar(&docker()).unwrap();
    for platform in [None, Some("amd64")] {
        let (files, _) = layout(platform);
        read_tar(&files).unwrap();
        let image = read(&folder(&files, at.path()), at.path());
        check_layers(&image);
        assert!(image.unwrap().origin.starts_with("oci layout sha256:"));
    }
}

#[test]
fn of_several_platforms_it_is_this_one_also_behind_an_index() {
    let (mut files, manifest) = layout(Some("amd64"));
    let other = b"{}";
    let inner = index_of(vec![descriptor(other, Some("arm64")), descriptor(&manifest, Some("amd64"))]);
    files.push(blob(&inner));
    files[4].1 = index_of(vec![descriptor(&inner, None)]);
    read_tar(&files).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let (whole, manifest) = layout(None);
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = whole.clone();
        change(&mut files);
        read_tar(&files)
    };
    let saved = |change: &dyn Fn(&mut Files)| {
        let mut files = docker();
        change(&mut files);
        read_tar(&files)
    };
    let digest = |text: &str| {
        let entry = serde_json::json!({"mediaType": "x", "digest": text, "size": 1});
        index_of(vec![entry])
    };
    let cases = [
        ("a layer with other bytes", with(&|f| f[2].1 = b"Lower layer".to_vec())),
        ("a layer that is missing", with(&|f| drop(f.remove(3)))),
        ("a configuration with other bytes", with(&|f| f[0].1.push(b' '))),
        ("a manifest with other bytes", with(&|f| f[1].1.push(b' '))),
        ("several images", with(&|f| f[4].1 = index_of(vec![descriptor(&manifest, None); 2]))),
        ("no image", with(&|f| f[4].1 = index_of(vec![]))),
        ("an index that is none", with(&|f| f[4].1 = b"[".to_vec())),
        ("a digest that is a path", with(&|f| f[4].1 = digest("sha256:../../etc/passwd"))),
        ("another kind of digest", with(&|f| f[4].1 = digest("md5:00"))),
        ("a file twice", with(&|f| f.push(f[0].clone()))),
        ("a saved layer with other bytes", saved(&|f| f[2].1 = b"Lower layer".to_vec())),
        ("a saved layer that is missing", saved(&|f| drop(f.remove(3)))),
        (
            "two saved images",
            saved(&|f| {
                f[0].1 = b"[{\"Config\":\"a\",\"Layers\":[]},{\"Config\":\"a\",\"Layers\":[]}]".to_vec()
            }),
        ),
        ("paths that lead out", saved(&|f| f[0].1 = b"[{\"Config\":\"../c.json\",\"Layers\":[]}]".to_vec())),
        ("nothing of an image", saved(&|f| drop(f.remove(0)))),
    ];
    for (what, result) in cases {
        assert!(matches!(result, Err(OciError::Refused { .. })), "{what}: {result:?}");
    }
    let (other, _) = layout(Some("arm64"));
    assert!(matches!(read_tar(&other), Err(OciError::Platform { .. })));
}

#[test]
fn noise_and_cut_archives_are_errors() {
    let at = tempfile::tempdir().unwrap();
    let path = at.path().join("noise");
    fs::write(&path, (0..9000u32).map(|n| (n * 7 % 251) as u8).collect::<Vec<_>>()).unwrap();
    assert!(read(&path, at.path()).is_err());
    let whole = fs::read(tar(&docker(), at.path())).unwrap();
    for length in [0, 100, 512, 600, 1100, 2000] {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(read(&path, at.path()).is_err(), "{length}");
    }
    assert!(
        matches!(read(&at.path().join("missing"), at.path()), Err(e) if e.class() == forkd_protocol::error::ErrorClass::NotFound)
    );
}
