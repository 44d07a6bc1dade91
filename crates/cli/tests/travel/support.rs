//! Controllers with snapshots, and the command.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use forkd_engine::{Bounds, Engine, EngineConfig};
use forkd_protocol::control::CpuModel;
use forkd_protocol::rest::{SnapshotTiming, Transfer};
use forkd_store::{Below, SnapshotMeta, SnapshotRecord, Store};
use forkd_testkit::written::{self, runs, table};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// A controller and its store; ends with the test.
pub(crate) struct Controller {
    pub(crate) url: String,
    pub(crate) root: PathBuf,
    _folder: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Controller {
    /// With nothing in its store.
    pub(crate) fn empty() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    /// With the snapshots `a` and, over it, `b`; their image is `py`, their kernel `6.12`.
    pub(crate) fn with_chain() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("root")).unwrap();
        let a = snapshot(&store, "a", None, &[1, 2, 9]);
        snapshot(&store, "b", Some(&a), &[2, 3]);
        drop(store);
        Self::over(folder)
    }

    fn over(folder: TempDir) -> Self {
        let root = folder.path().join("root");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let libexec = folder.path().join("libexec");
        let config = EngineConfig::plain(root.clone(), libexec, Bounds::default());
        let url = runtime.block_on(async {
            let engine = Engine::open(config).await.unwrap();
            let service = forkd_controller::Service::open(engine, Default::default()).await.unwrap();
            let doors = forkd_controller::Doors {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                ..forkd_controller::Doors::default()
            };
            let bound = doors.bind().await.unwrap();
            let address = bound.addresses()[0];
            tokio::spawn(bound.serve(service, forkd_controller::Drain::default()));
            format!("http://{address}")
        });
        Self { url, root, _folder: folder, _runtime: runtime }
    }

    /// The command, not started yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkd"));
        command.arg("--json").args(args).env("FORKD_URL", &self.url).env_remove("FORKD_TOKEN");
        command.stdin(Stdio::null());
        command
    }

    /// Runs the command.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran(self.command(args).output().unwrap())
    }

    /// Everything in its store is what it is called, and so many snapshots are there.
    #[track_caller]
    pub(crate) fn is_sound_with(&self, snapshots: u64) {
        let report: serde_json::Value = self.run(&["verify"]).parsed();
        assert_eq!(
            (report["snapshots"].as_u64(), report["damage"].as_array().map(Vec::len)),
            (Some(snapshots), Some(0))
        );
        for folder in ["imports", "staging"] {
            assert_eq!(std::fs::read_dir(self.root.join(folder)).unwrap().count(), 0, "{folder}");
        }
    }

    /// How many snapshots are listed.
    pub(crate) fn snapshots(&self) -> usize {
        self.run(&["images"]).parsed::<Vec<serde_json::Value>>().len()
    }
}

/// A command that has ended.
pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    /// What was moved; it has to have gone well.
    #[track_caller]
    pub(crate) fn moved(&self) -> Transfer {
        self.parsed()
    }

    #[track_caller]
    pub(crate) fn parsed<T: DeserializeOwned>(&self) -> T {
        assert!(self.0.status.success(), "{:?}", self.0);
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", self.0))
    }

    /// What it said; it has to have ended with this code.
    #[track_caller]
    pub(crate) fn fails_with(&self, code: i32) -> String {
        assert_eq!(self.0.status.code(), Some(code), "{:?}", self.0);
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// A snapshot as a monitor would write it.
fn snapshot(store: &Store, tag: &str, parent: Option<&SnapshotRecord>, pages: &[u64]) -> SnapshotRecord {
    let name = "py".parse().unwrap();
    if store.image(&name).is_err() {
        let mut image = store.begin_image(&name, "a test").unwrap();
        image.append(&[5; 16 * 4096]).unwrap();
        image.publish().unwrap();
        let mut kernel = store.begin_kernel(&"6.12".parse().unwrap()).unwrap();
        kernel.write_vmlinuz(&b"a kernel"[..]).unwrap();
        kernel.write_modules(&b"its modules"[..]).unwrap();
        kernel.publish().unwrap();
    }
    let mut draft = store.begin_snapshot(&tag.parse().unwrap()).unwrap();
    let files = draft.outputs();
    (&files.state).write_all(&state(tag.as_bytes())).unwrap();
    files.memory.set_len(8 << 20).unwrap();
    for page in pages {
        files.memory.write_all_at(&[*page as u8; 4096], page * 4096).unwrap();
    }
    (&files.memory_extents).write_all(&table(&runs(pages.iter().copied()))).unwrap();
    let below = parent.map(|parent| Below {
        parent: parent.id.clone(),
        memory: parent.manifest.memory.clone(),
        disk: parent.manifest.disk.clone(),
    });
    let meta = SnapshotMeta {
        image: store.image(&name).unwrap(),
        kernel: "6.12".parse().unwrap(),
        vcpus: 1,
        memory_mib: 8,
        cpu: CpuModel::V3,
        warm: None,
        timing: SnapshotTiming::default(),
        pause_ms: None,
        workload_pause_ms: None,
        limits: Default::default(),
        network: None,
        branched_from: None,
        agent_protocol: 1,
        secrets: Vec::new(),
        below,
    };
    draft.publish(meta).unwrap()
}

/// A machine state of this host.
fn state(payload: &[u8]) -> Vec<u8> {
    let vendor = forkd_host::cpu::vendor().unwrap_or_else(|| "AuthenticAMD".to_owned());
    written::state(vendor.as_bytes().try_into().unwrap(), 1, payload)
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
