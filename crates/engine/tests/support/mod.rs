//! A store in a temporary folder with an image and a kernel, and an engine whose monitors are fakes.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_engine::{Admission, Bounds, Engine, EngineConfig, EngineError};
use forkd_host::process::Process;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{
    CreateSandboxes, CreateSnapshot, ExecRequest, ExecResponse, SandboxInfo, SnapshotInfo,
};
use tokio::sync::mpsc;

pub struct House {
    pub folder: Folder,
}

/// Where a house stands: its own, or one of another process.
pub enum Folder {
    Own(tempfile::TempDir),
    Given(PathBuf),
}

impl Folder {
    pub fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Given(path) => path,
        }
    }
}

/// Short enough for tests of what is late, long enough for a busy computer.
pub fn bounds() -> Bounds {
    let short = Duration::from_secs(20);
    Bounds {
        control: short,
        write: short,
        boot: short,
        answer: short,
        freeze: short,
        guest_grace: Duration::from_millis(300),
        end: short,
    }
}

impl House {
    pub fn new() -> Self {
        Self::built(Folder::Own(tempfile::tempdir().unwrap()))
    }

    /// One on a file system of the caller's.
    pub fn on(folder: &Path) -> Self {
        Self::built(Folder::Given(folder.to_owned()))
    }

    fn built(folder: Folder) -> Self {
        let house = Self { folder };
        fs::create_dir_all(house.libexec().join("moods")).unwrap();
        std::os::unix::fs::symlink(fake(), house.libexec().join("forkd-vmm")).unwrap();
        fs::write(house.libexec().join("forkd-agent"), "an agent").unwrap();
        house
    }

    /// One that stands already.
    pub fn at(folder: &Path) -> Self {
        Self { folder: Folder::Given(folder.to_owned()) }
    }

    pub fn libexec(&self) -> PathBuf {
        self.folder.path().join("libexec")
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The next monitor that starts is in this mood.
    pub fn mood(&self, mood: &str) {
        fs::write(self.libexec().join("moods").join(mood), "").unwrap();
    }

    pub fn config(&self, bounds: Bounds) -> EngineConfig {
        // Some of the file systems that houses stand on are tiny.
        let admission = Admission { disk_reserve_mib: 0, ..Admission::default() };
        EngineConfig { admission, ..EngineConfig::plain(self.root(), self.libexec(), bounds) }
    }

    pub async fn open(&self, bounds: Bounds) -> Engine {
        Engine::open(self.config(bounds)).await.unwrap()
    }

    /// An engine with an image, a kernel and the snapshot `t`.
    pub async fn furnished(&self, bounds: Bounds) -> Engine {
        let engine = self.with_image(bounds).await;
        create(&engine, &snapshot("t")).await.unwrap();
        engine
    }

    pub async fn with_image(&self, bounds: Bounds) -> Engine {
        let engine = self.open(bounds).await;
        self.furnish(&engine).await;
        engine
    }

    /// Gives it an image and a kernel.
    pub async fn furnish(&self, engine: &Engine) {
        let disk = std::io::Cursor::new(vec![5u8; 64 * 4096]);
        engine.put_image("py".parse().unwrap(), "a test".to_owned(), disk).await.unwrap();
        engine.put_kernel("6.12".parse().unwrap(), std::io::Cursor::new(kernel_archive())).await.unwrap();
    }

    /// The monitors that wait, by pid.
    pub fn waiting(&self) -> Vec<u32> {
        let run = self.root().join("run");
        let folders = self.run_folders().into_iter().filter(|name| name.starts_with("wm-"));
        let notes = folders.filter_map(|name| fs::read_to_string(run.join(name).join("monitor.pid")).ok());
        notes.filter_map(|note| note.split(' ').next()?.parse().ok()).collect()
    }

    /// Run folders that are there.
    pub fn run_folders(&self) -> Vec<String> {
        names(&self.root().join("run"))
    }
}

impl Drop for House {
    /// Sandboxes outlive their engine; here nothing outlives its house.
    fn drop(&mut self) {
        let run = self.root().join("run");
        for id in fs::read_dir(run).into_iter().flatten().flatten() {
            let note = fs::read_to_string(id.path().join("monitor.pid")).unwrap_or_default();
            let mut fields = note.split(' ').map(|field| field.parse::<u64>().ok());
            if let (Some(Some(pid)), Some(Some(ticks))) = (fields.next(), fields.next())
                && let Ok(Some(process)) = Process::find(u32::try_from(pid).unwrap_or(0), ticks)
            {
                let _ = process.kill().and_then(|()| process.ended_within(Duration::from_secs(20)));
                let _ = process.reap();
            }
        }
    }
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn fake() -> PathBuf {
    // target/<..>/debug/deps/<this program> and target/<..>/debug/examples/fake_monitor
    let debug = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let fake = debug.join("examples/fake_monitor");
    assert!(fake.exists(), "{} is missing: run all targets of this package", fake.display());
    fake
}

fn kernel_archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for name in ["vmlinuz", "modules.cpio"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &b"data"[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

pub fn snapshot(tag: &str) -> CreateSnapshot {
    serde_json::from_value(serde_json::json!({"tag": tag, "image": "py", "memory_mib": 128})).unwrap()
}

pub async fn create(engine: &Engine, asked: &CreateSnapshot) -> Result<SnapshotInfo, EngineError> {
    engine.create_snapshot(asked.clone(), mpsc::channel(100).0).await
}

pub fn children(n: u32) -> CreateSandboxes {
    serde_json::from_value(serde_json::json!({"snapshot_tag": "t", "n": n})).unwrap()
}

pub async fn fork_one(engine: &Engine) -> SandboxId {
    id(&engine.fork(children(1)).await.unwrap()[0])
}

pub fn id(info: &SandboxInfo) -> SandboxId {
    info.id.parse().unwrap()
}

pub fn command(args: &[&str]) -> ExecRequest {
    serde_json::from_value(serde_json::json!({"args": args, "timeout_secs": 1})).unwrap()
}

pub async fn exec(engine: &Engine, id: &SandboxId, args: &[&str]) -> Result<ExecResponse, EngineError> {
    engine.exec(id, command(args)).await
}

/// Kills a monitor, whoever has to collect it.
pub fn kill_and_wait(pid: u32) {
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    while is_running(pid) {
        std::thread::yield_now();
    }
}

pub fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Asks again until it is so; the test fails where it never is.
pub async fn eventually(mut so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never became so");
}
