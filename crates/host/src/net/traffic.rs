//! What went through a slot, counted by the kernel at the host's end of its veth.

use std::fs;

use forkd_protocol::rest::NetStats;

use super::addresses::veth;

/// Since the slot was made, as its guest sees it: what the host received is what the guest sent. Nothing where the slot is
/// gone. Of the namespace of this thread, which /sys need not show.
pub(super) fn of_slot(index: u32) -> Option<NetStats> {
    of_interface(&veth(index), &fs::read_to_string("/proc/thread-self/net/dev").ok()?)
}

/// Columns 1 and 2 are what was received, 9 and 10 what was sent: bytes, packets.
fn of_interface(name: &str, table: &str) -> Option<NetStats> {
    let counters = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let counters: Vec<u64> = counters.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let at = |column: usize| counters.get(column).copied();
    Some(NetStats { rx_bytes: at(8)?, rx_packets: at(9)?, tx_bytes: at(0)?, tx_packets: at(1)? })
}

/// What came since `before`.
pub(super) fn since(before: &NetStats, now: &NetStats) -> NetStats {
    NetStats {
        rx_bytes: now.rx_bytes.saturating_sub(before.rx_bytes),
        tx_bytes: now.tx_bytes.saturating_sub(before.tx_bytes),
        rx_packets: now.rx_packets.saturating_sub(before.rx_packets),
        tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_line_and_columns() {
        let table = " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n \
                     fkd-12:  9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n \
                     fkd-1: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n";
        let expected = NetStats { rx_bytes: 30, tx_bytes: 10, rx_packets: 4, tx_packets: 2 };
        assert_eq!(of_interface("fkd-1", table), Some(expected));
        assert_eq!(of_interface("fkd-2", table), None);
        assert_eq!(since(&expected, &NetStats { rx_bytes: 31, ..expected }).rx_bytes, 1);
    }
}
