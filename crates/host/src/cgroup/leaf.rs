//! The leaf of one monitor.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use forkd_protocol::rest::{Cpus, IoLimits};
use rustix::io::Errno;

use super::CgroupError;
use super::device::Device;
use super::usage::{self, Usage};

/// How long a leaf whose processes were killed may take to become empty.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);
/// Period of processor limits, microseconds: the kernel's own.
const CPU_PERIOD_US: u64 = 100_000;
/// Below a memory limit lies a margin of this fraction of it, in which a sandbox is slowed down so that page cache can be
/// given up before anything is killed. Larger, and one that has no cache would hang rather than end.
const HIGH_MARGIN: u64 = 64;

/// The leaf of one monitor.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// A process that writes `0` to this file enters, with all that it will start.
    pub fn door(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Moves a process in; what it maps from now on is charged here.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Sets its memory limit, in bytes. Beyond it everything in here is killed together.
    pub fn limit_memory(&self, bytes: Option<u64>) -> Result<(), CgroupError> {
        let text = |bytes: Option<u64>| bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        let high = bytes.map(|bytes| bytes - bytes / HIGH_MARGIN);
        self.write("memory.max", &text(bytes))?;
        self.write_if_there("memory.high", &text(high))?;
        // Without a bound on swap a limit on memory would only move the cost; hosts without swap lack the file.
        self.write_if_there("memory.swap.max", if bytes.is_some() { "0" } else { "max" })?;
        self.write_if_there("memory.oom.group", "1")
    }

    /// Sets how many processors it may use.
    pub fn limit_cpus(&self, cpus: Option<Cpus>) -> Result<(), CgroupError> {
        let quota = match cpus {
            // The kernel takes no quota below a millisecond.
            Some(cpus) => (u64::from(cpus.millis()) * CPU_PERIOD_US / 1000).max(1000).to_string(),
            None => "max".to_owned(),
        };
        self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))
    }

    /// Sets how many threads and processes there may be.
    pub fn limit_pids(&self, pids: Option<u64>) -> Result<(), CgroupError> {
        self.write("pids.max", &pids.map_or_else(|| "max".to_owned(), |pids| pids.to_string()))
    }

    pub(super) fn limit_io(&self, disk: &Device, io: &IoLimits) -> Result<(), CgroupError> {
        let text = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        let line = format!(
            "{} rbps={} wbps={} riops={} wiops={}",
            disk.number(),
            text(io.read_bytes),
            text(io.write_bytes),
            text(io.read_ops),
            text(io.write_ops)
        );
        match self.write("io.max", &line) {
            // Not every block device can be limited. Where nothing is asked for, nothing is lost.
            Err(_) if io.is_empty() => Ok(()),
            written => written,
        }
    }

    /// Bytes charged to it now.
    pub fn memory_current(&self) -> Result<u64, CgroupError> {
        let path = self.path.join("memory.current");
        let text = fs::read_to_string(&path).map_err(|e| CgroupError::io("read", &path, e))?;
        text.trim().parse().map_err(|_| CgroupError::io("read", &path, io::ErrorKind::InvalidData.into()))
    }

    /// How often the kernel killed in here because memory ran out.
    pub fn memory_kills(&self) -> u64 {
        self.read("memory.events").and_then(|events| usage::keyed(&events, "oom_kill")).unwrap_or(0)
    }

    /// What it used.
    pub fn usage(&self) -> Usage {
        let number = |file: &str| self.read(file)?.trim().parse().ok();
        Usage {
            memory_bytes: number("memory.current"),
            memory_max_bytes: number("memory.max"),
            cpu: self.read("cpu.stat").and_then(|stat| usage::cpu(&stat)),
            io: self.read("io.stat").map(|stat| usage::io(&stat)),
            pids: number("pids.current"),
        }
    }

    /// Kills everything in it.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.write("cgroup.kill", "1")
    }

    /// Kills what is left in it and removes it. One that is gone already is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + EMPTY_WITHIN;
        loop {
            match fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) if is_busy(&e) && Instant::now() < deadline => {
                    self.kill()?;
                    thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(CgroupError::io("remove", &self.path, e)),
            }
        }
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path.join(file)).ok()
    }

    fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|e| CgroupError::io("write", &path, e))
    }

    fn write_if_there(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        if self.path.join(file).exists() { self.write(file, value) } else { Ok(()) }
    }
}

fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(files: &[&str]) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|file| fs::write(dir.path().join(file), "").unwrap());
        let leaf = Cgroup::new(dir.path().to_owned());
        (dir, leaf)
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        let (_dir, leaf) = leaf(&["memory.high", "memory.oom.group"]);
        leaf.limit_memory(Some(256 << 20)).unwrap();
        leaf.limit_cpus(Some(0.5.try_into().unwrap())).unwrap();
        leaf.limit_pids(Some(64)).unwrap();
        leaf.add(4711).unwrap();
        let read = |file: &str| leaf.read(file);
        assert_eq!(read("memory.max").unwrap(), "268435456");
        assert_eq!(read("memory.high").unwrap(), (252 << 20).to_string());
        assert_eq!(read("memory.oom.group").unwrap(), "1");
        assert_eq!(read("memory.swap.max"), None, "this host has no swap");
        assert_eq!(read("cpu.max").unwrap(), "50000 100000");
        assert_eq!(read("pids.max").unwrap(), "64");
        assert_eq!(read("cgroup.procs").unwrap(), "4711");
        leaf.limit_cpus(None).unwrap();
        leaf.limit_memory(None).unwrap();
        assert_eq!(read("cpu.max").unwrap(), "max 100000");
        assert_eq!(read("memory.high").unwrap(), "max");
    }

    #[test]
    fn what_the_host_does_not_count_is_absent() {
        let (dir, leaf) = leaf(&[]);
        assert_eq!((leaf.usage(), leaf.memory_kills()), (Usage::default(), 0));
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        fs::write(dir.path().join("memory.current"), "4096\n").unwrap();
        let usage = leaf.usage();
        assert_eq!((usage.memory_bytes, usage.memory_max_bytes), (Some(4096), None));
    }

    #[test]
    fn removing_what_is_gone_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        Cgroup::new(dir.path().join("none")).remove().unwrap();
    }
}
