//! `forkd push` and `forkd pull` through a folder and through web servers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::get;
use forkd_protocol::rest::HubTag;

use crate::support::Controller;

/// `python3 -m http.server` over a folder: a web server that knows nothing of hubs.
struct WebServer(Child, String);

impl WebServer {
    fn over(folder: &Path) -> Self {
        let mut server = Command::new("python3")
            .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory"])
            .arg(folder)
            .arg("0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port =
            line.split(' ').skip_while(|word| *word != "port").nth(1).expect("it says its port").to_owned();
        Self(server, format!("http://127.0.0.1:{port}"))
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A web server over a folder that hands out so many objects and then no more.
struct Breaking {
    url: String,
    served: Arc<AtomicUsize>,
    _runtime: tokio::runtime::Runtime,
}

impl Breaking {
    fn over(folder: &Path, objects: usize) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let state = (folder.to_owned(), Arc::clone(&served), objects);
        let serve =
            |State((folder, served, objects)): State<(std::path::PathBuf, Arc<AtomicUsize>, usize)>,
             UrlPath(path): UrlPath<String>| async move {
                if path.starts_with("objects/") && served.fetch_add(1, Ordering::SeqCst) >= objects {
                    return Err(StatusCode::FORBIDDEN);
                }
                std::fs::read(folder.join(path)).map_err(|_| StatusCode::NOT_FOUND)
            };
        let router = axum::Router::new().route("/{*path}", get(serve)).with_state(state);
        let url = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await });
            url
        });
        Self { url, served, _runtime: runtime }
    }
}

#[test]
fn a_folder_is_a_hub_and_what_it_has_is_not_sent_again() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let folder = tempfile::tempdir().unwrap();
    let hub = format!("file://{}/hub", folder.path().display());
    assert!(from.run(&["images", "--remote", &hub]).fails_with(3).contains("nothing was pushed"));
    let first = from.run(&["push", "a", &hub]).moved();
    assert!(first.objects_moved == first.objects && first.objects > 0);
    let second = from.run(&["push", "b", &hub]).moved();
    // Its own layer and its own state.
    assert_eq!((second.objects - first.objects, second.objects_moved), (2, 2));
    let again = from.run(&["push", "b", &hub]).moved();
    assert_eq!((again.objects_moved, again.bytes_moved), (0, 0));
    let listed: Vec<HubTag> = from.run(&["images", "--remote", &hub]).parsed();
    assert_eq!(listed.iter().map(|t| t.tag.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((listed[1].chain_depth, listed[1].memory_mib, listed[1].image.as_str()), (2, 8, "py"));

    let pulled = to.run(&["pull", &format!("{hub}/b")]).moved();
    assert_eq!((pulled.objects_moved, &pulled.id), (second.objects, &second.id));
    to.is_sound_with(2);
    let again = to.run(&["pull", &format!("{hub}/b/")]).moved();
    assert_eq!(again.objects_moved, 0);
    assert!(to.run(&["pull", &format!("{hub}/c")]).fails_with(3).contains("images --remote"));
    assert!(to.run(&["pull", &hub.replace("/hub", "/.")]).fails_with(2).contains("has to be a tag"));

    // Another snapshot of that name is not pushed over it.
    let other = Controller::with_chain();
    let said = other.run(&["push", "b", &hub]).fails_with(4);
    assert!(said.contains("--as"), "{said}");
    let renamed = other.run(&["push", "b", &hub, "--as", "b2"]).moved();
    assert!(renamed.place.ends_with("/hub/b2"), "{renamed:?}");
    let pulled = to.run(&["pull", &format!("{hub}/b2")]).moved();
    assert_eq!((pulled.tag.as_str(), pulled.snapshots.len()), ("b2", 2));
    to.is_sound_with(3);
}

#[test]
fn any_web_server_is_a_hub_to_pull_from_and_a_pull_that_breaks_off_goes_on() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let folder = tempfile::tempdir().unwrap();
    let all = from.run(&["push", "b", &format!("file://{}", folder.path().display())]).moved();
    let breaking = Breaking::over(folder.path(), 3);
    to.run(&["pull", &format!("{}/b", breaking.url)]).fails_with(10);
    assert!(breaking.served.load(Ordering::SeqCst) > 3);
    assert_eq!(to.snapshots(), 0);

    let server = WebServer::over(folder.path());
    let said = from.run(&["push", "b", &server.1]).fails_with(2);
    assert!(said.contains("can only be read"), "{said}");
    let listed: Vec<HubTag> = to.run(&["images", "--remote", &server.1]).parsed();
    assert_eq!(listed.len(), 1);
    let rest = to.run(&["pull", &format!("{}/b", server.1)]).moved();
    assert_eq!((rest.objects, rest.objects_moved), (all.objects, all.objects - 3));
    to.is_sound_with(2);
}

#[test]
fn a_hub_that_lies_is_refused() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let folder = tempfile::tempdir().unwrap();
    let hub = format!("file://{}", folder.path().display());
    from.run(&["push", "b", &hub]).moved();
    let objects = folder.path().join("objects");
    let first = std::fs::read_dir(&objects).unwrap().next().unwrap().unwrap().path();
    let object = std::fs::read_dir(first).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&object).unwrap();
    std::fs::write(&object, zstd::encode_all(&b"something else"[..], 3).unwrap()).unwrap();
    assert!(to.run(&["pull", &format!("{hub}/b")]).fails_with(2).contains("is refused"));
    to.is_sound_with(0);
    std::fs::write(&object, sound).unwrap();
    let bundles = folder.path().join("bundles");
    let bundle = std::fs::read_dir(bundles).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&bundle).unwrap();
    std::fs::write(&bundle, format!("{text} ")).unwrap();
    assert!(to.run(&["pull", &format!("{hub}/b")]).fails_with(8).contains("hashes to something else"));
    std::fs::write(&bundle, text).unwrap();
    to.run(&["pull", &format!("{hub}/b")]).moved();
    to.is_sound_with(2);
}
