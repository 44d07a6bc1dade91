//! How the guest is doing.

use std::fs;
use std::io;
use std::time::Duration;

use forkd_protocol::guest::GuestMetrics;
use hyper::StatusCode;

use super::connect::{Code, ConnectError};
use crate::agent::blocking;
use crate::http::{Body, Response};

/// How long the processors are looked at.
const SAMPLE: Duration = Duration::from_millis(100);

/// `GET /metrics`.
pub(crate) async fn metrics() -> Response {
    match measure().await {
        Ok(metrics) => Body::json(StatusCode::OK, &metrics),
        Err(e) => ConnectError::new(Code::Internal, e.to_string()).into_response(),
    }
}

async fn measure() -> io::Result<GuestMetrics> {
    let before = Cpu::now()?;
    tokio::time::sleep(SAMPLE).await;
    let used = Cpu::now()?.used_since(before);
    blocking(move || {
        let text = fs::read_to_string("/proc/meminfo")?;
        let memory = |name: &str| kilobytes(&text, name) * 1024;
        let disk = rustix::fs::statvfs("/")?;
        let total = memory("MemTotal");
        Ok(GuestMetrics {
            cpu_count: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            cpu_used_pct: used,
            mem_used: total.saturating_sub(memory("MemAvailable")),
            mem_total: total,
            mem_cache: memory("Cached"),
            disk_used: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
            disk_total: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    })
    .await
}

/// Time of all processors since boot, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cpu {
    all: u64,
    idle: u64,
}

impl Cpu {
    fn now() -> io::Result<Self> {
        Self::read(&fs::read_to_string("/proc/stat")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Of the first line: user, nice, system, idle, iowait, irq, softirq, steal. Guests of the guest are in user.
    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        Some(Self { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
    }

    /// Percent of all processors together.
    fn used_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle).min(all);
        if all == 0 { 0.0 } else { (all - idle) as f64 * 100.0 / all as f64 }
    }
}

/// A line of /proc/meminfo; 0 where it has none.
fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let before = Cpu::read("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 2").unwrap();
        assert_eq!(before, Cpu { all: 100, idle: 80 });
        let after = Cpu { all: 200, idle: 155 };
        assert_eq!(after.used_since(before), 25.0);
        assert_eq!(before.used_since(before), 0.0);
        assert_eq!(Cpu::read("intr 1 2"), None);
        let text = "MemTotal:  2000 kB\nCachedX: 1 kB\nCached:   7 kB\n";
        assert_eq!((kilobytes(text, "Cached"), kilobytes(text, "None")), (7, 0));
    }
}
