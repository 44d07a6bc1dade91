//! What a leaf used.

use forkd_protocol::rest::{CpuStats, IoStats};

/// Accounts of one leaf. What the host keeps no account of is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Memory charged now, bytes.
    pub memory_bytes: Option<u64>,
    /// Memory limit, bytes; absent where there is none.
    pub memory_max_bytes: Option<u64>,
    /// Processor time.
    pub cpu: Option<CpuStats>,
    /// Disk traffic, all disks together.
    pub io: Option<IoStats>,
    /// Threads and processes.
    pub pids: Option<u64>,
}

/// The number after `key` in a file of one key and value per line.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

pub(super) fn cpu(stat: &str) -> Option<CpuStats> {
    Some(CpuStats {
        used_us: keyed(stat, "usage_usec")?,
        // Only where the controller is there.
        throttled_us: keyed(stat, "throttled_usec").unwrap_or(0),
    })
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`, one line for each disk.
pub(super) fn io(stat: &str) -> IoStats {
    let mut sum = IoStats::default();
    let fields = stat.split_ascii_whitespace().filter_map(|field| field.split_once('='));
    for (key, value) in fields {
        let Ok(value) = value.parse::<u64>() else { continue };
        let total = match key {
            "rbytes" => &mut sum.read_bytes,
            "wbytes" => &mut sum.write_bytes,
            "rios" => &mut sum.read_ops,
            "wios" => &mut sum.write_ops,
            _ => continue,
        };
        *total = total.saturating_add(value);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(
            (keyed(events, "oom_kill"), keyed(events, "oom"), keyed("", "oom")),
            (Some(2), Some(3), None)
        );
        let stat = "usage_usec 77\nuser_usec 7\nsystem_usec 70\nnr_periods 0\nthrottled_usec 5\n";
        assert_eq!(cpu(stat), Some(CpuStats { used_us: 77, throttled_us: 5 }));
        assert_eq!(cpu("usage_usec 1\n"), Some(CpuStats { used_us: 1, throttled_us: 0 }));
        assert_eq!(cpu("nonsense"), None);
        let disks = "253:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:0 rbytes=5 wbytes=x rios=1 wios=1\n8:1\n";
        assert_eq!(io(disks), IoStats { read_bytes: 15, write_bytes: 20, read_ops: 2, write_ops: 3 });
    }
}
