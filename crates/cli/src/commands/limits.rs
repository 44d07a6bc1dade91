//! Limits as `forkd fork` takes them.

use forkd_protocol::rest::{Cpus, IoLimits, Limits};

/// What each child may take of its host; what is not said is as for the snapshot.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct LimitArgs {
    /// Memory limit of each child; 0 is none (default: as for the snapshot)
    #[arg(long, value_name = "MIB")]
    memory_limit_mib: Option<u64>,
    /// Processors that each child may use, such as 0.5; 0 is no limit
    #[arg(long, value_name = "N", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Threads and processes of each child's monitor; 0 is no limit of the configuration
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Disk traffic per second, such as read=100M,write=50M,read-ops=2000,write-ops=1000; 0 is no limit
    #[arg(long, value_name = "LIST", value_parser = io)]
    io: Option<IoLimits>,
}

impl LimitArgs {
    /// As the API takes them.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            memory_mib: self.memory_limit_mib,
            cpus: self.cpus,
            pids: self.pids,
            io: self.io.unwrap_or_default(),
        }
    }
}

fn cpus(text: &str) -> Result<Cpus, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    Cpus::try_from(number).map_err(|e| e.to_string())
}

fn io(text: &str) -> Result<IoLimits, String> {
    let mut limits = IoLimits::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        let limit = match key {
            "read" => &mut limits.read_bytes,
            "write" => &mut limits.write_bytes,
            "read-ops" => &mut limits.read_ops,
            "write-ops" => &mut limits.write_ops,
            _ => return Err(format!("{key:?} is none of read, write, read-ops, write-ops")),
        };
        *limit = Some(amount(value)?);
    }
    Ok(limits)
}

/// A number, maybe of KiB, MiB or GiB.
fn amount(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units.iter().find(|(letter, _)| text.ends_with(*letter));
    let (digits, shift) = unit.map_or((text, 0), |(letter, shift)| (text.trim_end_matches(*letter), *shift));
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no number such as 2000 or 50M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_as_written() {
        let limits = io("read=100M,write-ops=5").unwrap();
        assert_eq!(
            limits,
            IoLimits { read_bytes: Some(100 << 20), write_ops: Some(5), ..IoLimits::default() }
        );
        for bad in [
            "",
            "read",
            "read=",
            "read=x",
            "reads=5",
            "read=5T",
            "read=99999999999999999999",
            "read=18446744073709551615G",
        ] {
            assert!(io(bad).is_err(), "{bad}");
        }
        assert!(cpus("0.5").is_ok() && cpus("lots").is_err() && cpus("-1").is_err());
    }
}
