//! Which system call a process was killed for, as the kernel logged it.
//!
//! A filter that kills leaves a record of type 1326 in the audit log, which is the kernel's log where no daemon takes
//! it away. Source: kernel/auditsc.c, `audit_seccomp`; record format of /dev/kmsg: Documentation/ABI/testing/dev-kmsg.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest record, its key-value pairs among it.
const RECORD: usize = 8192;
/// Most records that are looked at.
const RECORDS: usize = 1 << 17;

/// The number of the call that a process of user `uid` was last killed for, at `since` or later: who had that number
/// before may have been killed, too. `None` where the log does not tell, for instance because a daemon of the host's
/// collects these records.
pub fn refused_call(uid: u32, since: SystemTime) -> Option<u32> {
    let since = since.duration_since(UNIX_EPOCH).ok()?.as_millis();
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut log = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    let (mut record, mut found) = ([0; RECORD], None);
    for _ in 0..RECORDS {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                found = call_in(&text, uid, since).or(found);
            }
            // It was overwritten before it was read; the next one is there.
            Err(e) if e.kind() == ErrorKind::BrokenPipe || e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    found
}

/// The call of a record of `uid` that is not older than `since`, in milliseconds since the Unix epoch.
fn call_in(record: &str, uid: u32, since: u128) -> Option<u32> {
    let (_, text) = record.split_once(';')?;
    // Whoever may write to the log could say the same; a name with spaces in it is quoted and comes later.
    let (time, text) = text.strip_prefix("audit: type=1326 audit(")?.split_once(' ')?;
    let (seconds, rest) = time.split_once('.')?;
    let (millis, _) = rest.split_once(':')?;
    if seconds.parse::<u128>().ok()?.checked_mul(1000)?.checked_add(millis.parse().ok()?)? < since {
        return None;
    }
    let mut fields = text.split_ascii_whitespace().filter_map(|field| field.split_once('='));
    let mut value = |key| fields.find(|(name, _)| *name == key).and_then(|(_, value)| value.parse().ok());
    if value("uid") != Some(uid) {
        return None;
    }
    value("syscall")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1_100_193_345;
    const RECORD: &str = "5,1234,2316253772,-;audit: type=1326 audit(1796105730.296:8): auid=4294967295 uid=1100193345 \
        gid=1100193345 ses=4294967295 pid=3038 comm=\"vcpu0\" exe=\"/usr/bin/forkd-vmm\" sig=31 arch=c000003e syscall=273 \
        compat=0 ip=0x7f53287acecd code=0x80000000\n";

    #[test]
    fn the_call_of_this_user_is_found_and_no_other() {
        assert_eq!(call_in(RECORD, USER, 0), Some(273));
        assert_eq!(call_in(RECORD, 4_294_967_295, 0), None, "auid is not uid");
        assert_eq!(call_in(&RECORD.replace("audit: type", "guest: audit: type"), USER, 0), None);
        assert_eq!(call_in("5,1,1,-;audit: type=1326 audit(9.1:1): uid=7", 7, 0), None);
        assert_eq!(call_in("5,1,1,-;audit: type=1326 uid=7 syscall=1", 7, 0), None);
    }

    #[test]
    fn what_an_earlier_process_of_this_user_was_killed_for_is_not_this_ones() {
        assert_eq!(call_in(RECORD, USER, 1_796_105_730_296), Some(273));
        assert_eq!(call_in(RECORD, USER, 1_796_105_730_297), None);
    }
}
