//! Against a real registry, Debian's docker-registry, which each test starts for itself.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use forkd_oci::{Fetch, OciError, Source, fetch};
use forkd_testkit::guard;
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE, IMAGE_LAYER_GZIP_MEDIA_TYPE, ImageIndexEntry, OciImageIndex, OciImageManifest,
    OciManifest, Platform,
};
use oci_client::secrets::RegistryAuth;
use sha2::{Digest as _, Sha256};

/// Of the password `secret`.
const BCRYPT: &str = "$2b$04$/vqRnJMmClXhJphX/Od9EeSK6kDmZTEIEXckyyPJsMKTrLgGIn9Tm";

/// A registry with an empty store; ends when dropped.
struct Registry {
    process: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Registry {
    /// None, said loudly, where the program is not installed.
    fn start(password: bool) -> Option<Self> {
        let there = Command::new("docker-registry").arg("--version").output();
        if !guard::met("registry", there.map(drop).map_err(|e| format!("docker-registry: {e}"))) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Free a moment ago; whoever takes it in between makes the test fail, not pass.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = folder.path().join("config.yml");
        std::fs::write(&config, configuration(folder.path(), address, password)).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let registry = Self { process, address, folder };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < Duration::from_secs(120), "the registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }

    fn reference(&self, name: &str) -> Reference {
        format!("{}/{name}", self.address).parse().unwrap()
    }

    fn cache(&self) -> std::path::PathBuf {
        self.folder.path().join("cache")
    }

    /// What `docker login` writes.
    fn login(&self, password: &str) -> std::path::PathBuf {
        let path = self.folder.path().join("docker.json");
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("me:{password}"));
        let address = self.address.to_string();
        std::fs::write(&path, serde_json::json!({"auths": {address: {"auth": auth}}}).to_string()).unwrap();
        path
    }

    async fn fetch(
        &self,
        name: &str,
        credentials: Option<&Path>,
    ) -> Result<forkd_oci::ContainerImage, OciError> {
        let how = Fetch { cache: &self.cache(), insecure: false, credentials };
        fetch(&Source::Registry(self.reference(name)), &how, &mut |_| {}).await
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn configuration(folder: &Path, address: SocketAddr, password: bool) -> String {
    let store = folder.join("store");
    let mut text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
        store.display()
    );
    if password {
        let users = folder.join("users");
        std::fs::write(&users, format!("me:{BCRYPT}\n")).unwrap();
        text += &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", users.display());
    }
    text
}

fn client(registry: &Registry) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let protocol = ClientProtocol::HttpsExcept(vec![registry.address.to_string()]);
    Client::new(ClientConfig { protocol, ..ClientConfig::default() })
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn sha256_digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn config(architecture: &str, layers: &[&[u8]]) -> Config {
    let ids: Vec<_> = layers.iter().map(|l| sha256_digest(l)).collect();
    let json = serde_json::json!({
        "architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids},
        "config": {"Env": ["MARK=1"], "WorkingDir": "/srv", "Cmd": ["run"]}
    });
    Config::new(json.to_string().into_bytes(), IMAGE_CONFIG_MEDIA_TYPE.to_owned(), None)
}

/// Pushes an image of two layers; its manifest.
async fn push(registry: &Registry, name: &str, architecture: &str, auth: &RegistryAuth) -> OciImageManifest {
    let plain: [&[u8]; 2] = [b"lower", architecture.as_bytes()];
    let layers: Vec<_> = plain
        .iter()
        .map(|l| ImageLayer::new(gzip(l), IMAGE_LAYER_GZIP_MEDIA_TYPE.to_owned(), None))
        .collect();
    let config = config(architecture, &plain);
    let manifest = OciImageManifest::build(&layers, &config, None);
    client(registry)
        .push(&registry.reference(name), &layers, config, auth, Some(manifest.clone()))
        .await
        .unwrap();
    manifest
}

#[tokio::test]
async fn an_image_is_fetched_once_and_its_layers_are_kept() {
    let Some(registry) = Registry::start(false) else { return };
    let manifest = push(&registry, "app:1", "amd64", &RegistryAuth::Anonymous).await;
    let image = registry.fetch("app:1", None).await.unwrap();
    let kept: Vec<_> = image.layers.iter().map(|l| std::fs::read(l).unwrap()).collect();
    assert_eq!(kept, [gzip(b"lower"), gzip(b"amd64")]);
    assert_eq!(image.settings.env["MARK"], "1");
    assert_eq!(
        (image.settings.workdir.as_deref(), &image.settings.cmd[..]),
        (Some("/srv"), &["run".to_owned()][..])
    );
    // Only documents are asked for again: blobs that were pushed are gone from the registry by now.
    let blobs = registry.folder.path().join("store/docker/registry/v2/blobs/sha256");
    for layer in &manifest.layers {
        let hex = layer.digest.strip_prefix("sha256:").unwrap();
        std::fs::remove_dir_all(blobs.join(&hex[..2]).join(hex)).unwrap();
    }
    let again = registry.fetch("app:1", None).await.unwrap();
    assert_eq!((again.layers, again.origin), (image.layers, image.origin));
}

#[tokio::test]
async fn of_several_platforms_it_is_this_one() {
    let Some(registry) = Registry::start(false) else { return };
    let auth = RegistryAuth::Anonymous;
    let mut entries = Vec::new();
    for architecture in ["arm64", "amd64"] {
        let manifest = push(&registry, &format!("app:{architecture}"), architecture, &auth).await;
        let json = serde_json::to_vec(&OciManifest::Image(manifest)).unwrap();
        let digest = client(&registry)
            .fetch_manifest_digest(&registry.reference(&format!("app:{architecture}")), &auth)
            .await
            .unwrap();
        let platform = Platform {
            architecture: architecture.into(),
            os: "linux".into(),
            os_version: None,
            os_features: None,
            variant: None,
            features: None,
        };
        entries.push(ImageIndexEntry {
            media_type: oci_client::manifest::OCI_IMAGE_MEDIA_TYPE.to_owned(),
            digest,
            size: json.len() as i64,
            platform: Some(platform),
            annotations: None,
            artifact_type: None,
        });
    }
    let index = |manifests| OciImageIndex {
        schema_version: 2,
        media_type: Some(oci_client::manifest::OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned()),
        manifests,
        artifact_type: None,
        annotations: None,
    };
    let client = client(&registry);
    let arm = index(vec![entries[0].clone()]);
    client.push_manifest_list(&registry.reference("app:arm"), &auth, arm).await.unwrap();
    client.push_manifest_list(&registry.reference("app:all"), &auth, index(entries)).await.unwrap();
    let image = registry.fetch("app:all", None).await.unwrap();
    assert_eq!(std::fs::read(&image.layers[1]).unwrap(), gzip(b"amd64"));
    for other in ["app:arm", "app:arm64"] {
        let refused = registry.fetch(other, None).await;
        assert!(matches!(refused, Err(OciError::Platform { .. })), "{other}: {refused:?}");
    }
}

#[tokio::test]
async fn a_registry_with_a_password_takes_that_of_docker_login() {
    let Some(registry) = Registry::start(true) else { return };
    let auth = RegistryAuth::Basic("me".to_owned(), "secret".to_owned());
    push(&registry, "app:1", "amd64", &auth).await;
    let refused = registry.fetch("app:1", None).await;
    assert!(matches!(refused, Err(OciError::Unauthorized { .. })), "{refused:?}");
    let wrong = registry.fetch("app:1", Some(&registry.login("Secret"))).await;
    assert!(matches!(wrong, Err(OciError::Unauthorized { .. })), "{wrong:?}");
    registry.fetch("app:1", Some(&registry.login("secret"))).await.unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_said_to_be_missing() {
    let Some(registry) = Registry::start(false) else { return };
    push(&registry, "app:1", "amd64", &RegistryAuth::Anonymous).await;
    for name in ["app:2", "other:1"] {
        let missing = registry.fetch(name, None).await;
        assert!(matches!(missing, Err(OciError::NoImage { .. })), "{name}: {missing:?}");
    }
    assert!(!registry.cache().join("oci").exists());
}
