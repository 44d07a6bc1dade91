//! A controller on a real connection, with a real engine in a temporary folder.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use forkd_engine::{Bounds, Engine, EngineConfig};
use forkd_protocol::rest::ErrorBody;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// A controller, and the folder that holds its root.
pub struct Controller {
    pub address: SocketAddr,
    pub folder: TempDir,
    bounds: Bounds,
    runtime: tokio::runtime::Runtime,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.head, String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub fn refused(&self, status: u16) -> ErrorBody {
        assert_eq!(self.status, status, "{} {}", self.head, String::from_utf8_lossy(&self.body));
        let body: ErrorBody = self.json();
        assert!(!body.error.is_empty() && !body.code.is_empty());
        body
    }
}

impl Controller {
    /// Without monitor and agent.
    pub fn start() -> Self {
        Self::open(tempfile::tempdir().unwrap(), Bounds::default())
    }

    /// With an agent that is none, and monitors that are fakes.
    pub fn with_fakes(bounds: Bounds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let libexec = folder.path().join("libexec");
        std::fs::create_dir_all(libexec.join("moods")).unwrap();
        std::os::unix::fs::symlink(fake_monitor(), libexec.join("forkd-vmm")).unwrap();
        std::fs::write(libexec.join("forkd-agent"), "an agent").unwrap();
        Self::open(folder, bounds)
    }

    /// With fakes, and an image and a kernel to make snapshots of.
    pub fn furnished() -> Self {
        let controller =
            Self::with_fakes(Bounds { guest_grace: Duration::from_millis(500), ..Bounds::default() });
        let mut tar = tar::Builder::new(Vec::new());
        for name in ["vmlinuz", "modules.cpio"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(4);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, &b"data"[..]).unwrap();
        }
        let zstd_of = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        assert_eq!(controller.put("/v1/images/py?origin=test", &zstd_of(&[5; 64 * 4096])).status, 201);
        assert_eq!(controller.put("/v1/kernels/k", &zstd_of(&tar.into_inner().unwrap())).status, 201);
        controller
    }

    /// The next monitor that starts is in this mood.
    pub fn mood(&self, mood: &str) {
        std::fs::write(self.folder.path().join("libexec/moods").join(mood), "").unwrap();
    }

    fn open(folder: TempDir, bounds: Bounds) -> Self {
        let runtime = runtime();
        let address = Self::serve(&runtime, folder.path(), bounds);
        Self { address, folder, bounds, runtime }
    }

    /// Another controller takes the place of this one, which lets go of everything.
    pub fn restart(&mut self) {
        std::mem::replace(&mut self.runtime, runtime()).shutdown_timeout(Duration::from_secs(30));
        self.address = Self::serve(&self.runtime, self.folder.path(), self.bounds);
    }

    fn serve(runtime: &tokio::runtime::Runtime, folder: &Path, bounds: Bounds) -> SocketAddr {
        runtime.block_on(async {
            let config = EngineConfig::plain(folder.join("root"), folder.join("libexec"), bounds);
            let engine = Engine::open(config).await.unwrap();
            let service = forkd_controller::Service::open(engine, Default::default()).await.unwrap();
            let doors = forkd_controller::Doors {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                ..forkd_controller::Doors::default()
            };
            let bound = doors.bind().await.unwrap();
            let address = bound.addresses()[0];
            tokio::spawn(bound.serve(service, forkd_controller::Drain::default()));
            address
        })
    }

    /// Sends a request exactly as written, which no client library would for some of them.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        stream.write_all(head.as_bytes()).unwrap();
        // A refused body may be left unread.
        drop(stream.write_all(body));
        let mut got = Vec::new();
        drop(stream.read_to_end(&mut got));
        let end = got.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(got[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = got.split_off(end + 4);
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Answer { status, head, body: if chunked { unchunk(&body) } else { body } }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[("Content-Type", "application/json")], body.as_bytes())
    }

    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.send("PUT", path, &[("Content-Type", "application/zstd")], body)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        out.extend_from_slice(&body[end + 2..end + 2 + length]);
        body = &body[end + 2 + length + 2..];
        if length == 0 {
            break;
        }
    }
    out
}

/// Monitors outlive their controller, but not the test.
impl Drop for Controller {
    fn drop(&mut self) {
        // A test that made tokens removes by itself what it forked.
        let listed = self.get("/v1/sandboxes");
        let listed: Vec<serde_json::Value> = if listed.status == 401 { Vec::new() } else { listed.json() };
        for sandbox in listed {
            self.delete(&format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap_or_default()));
        }
    }
}

/// The engine's fake monitor. A test of the whole workspace has built it, one of this package alone has not.
fn fake_monitor() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        // target/<..>/debug/deps/<this program> and target/<..>/debug/examples/fake_monitor
        let program = std::env::current_exe().unwrap();
        let fake = program.parent().unwrap().parent().unwrap().join("examples/fake_monitor");
        if !fake.exists() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "forkd-engine", "--example", "fake_monitor"]);
            build.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] });
            assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        }
        fake
    };
    BUILT.get_or_init(find).clone()
}
