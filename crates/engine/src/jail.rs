//! Whether a sandbox's monitor is jailed as it should be: what the kernel says of it, judged.

use std::collections::BTreeMap;

use forkd_host::jail::{Facts, NAMESPACES};
use forkd_protocol::rest::{JailCheck, JailReport};

/// Devices that a monitor holds open; anything else below /dev it was not handed.
const DEVICES: [&str; 4] = ["/dev/kvm", "/dev/urandom", "/dev/net/tun", "/dev/null"];
/// Limits that are set, by the kernel's name, and the most that each may be.
const LIMITS: [(&str, u64); 5] = [
    ("Max core file size", 0),
    ("Max file size", 1 << 40),
    ("Max open files", 2048),
    ("Max processes", 24),
    ("Max locked memory", 0),
];
/// The mode of a thread that is bound by a filter.
const FILTERED: u32 = 2;
/// The event loop is bound twice and a vCPU, too, beside the answer that threads are started the old way.
const FILTERS: u32 = 3;

/// Judges `facts` of the monitor of sandbox `id`.
pub(crate) fn judge(id: &str, pid: u32, facts: &Facts) -> JailReport {
    let mut checks: Vec<_> = NAMESPACES.iter().map(|name| namespace(name, facts)).collect();
    checks.extend([
        user(facts),
        capabilities(&facts.capabilities),
        check("no new privileges", facts.no_new_privileges, yes(facts.no_new_privileges)),
        seccomp(facts),
        root(facts),
        descriptors(&facts.descriptors),
        limits(facts),
        reaper(facts),
    ]);
    let ok = checks.iter().all(|check| check.ok || !check.needed);
    JailReport { id: id.to_owned(), pid, ok, checks, descriptors: facts.descriptors.clone() }
}

fn check(name: &str, ok: bool, found: impl Into<String>) -> JailCheck {
    JailCheck { name: name.to_owned(), ok, needed: true, found: found.into() }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn namespace(name: &str, facts: &Facts) -> JailCheck {
    let own = !facts.shared_namespaces.contains(name);
    let found = if own { "its own" } else { "the controller's" };
    JailCheck { needed: name != "user", ..check(&format!("{name} namespace"), own, found) }
}

fn user(facts: &Facts) -> JailCheck {
    let one = |ids: &[u32]| ids.first().copied().filter(|first| ids.iter().all(|id| id == first));
    let (user, group) = (one(&facts.users), one(&facts.groups));
    let ok =
        user.is_some_and(|id| id >= crate::UserRange::LEAST) && user == group && facts.supplementary == 0;
    let found =
        format!("{:?}, group {:?}, {} further groups", facts.users, facts.groups, facts.supplementary);
    check("user", ok, user.filter(|_| ok).map_or(found, |id| format!("{id}, and no group but its own")))
}

fn capabilities(sets: &BTreeMap<String, u64>) -> JailCheck {
    let some: Vec<_> = sets.iter().map(|(name, bits)| format!("{name} {bits:x}")).collect();
    check("capabilities", some.is_empty(), if some.is_empty() { "none".to_owned() } else { some.join(", ") })
}

fn seccomp(facts: &Facts) -> JailCheck {
    let loose = facts.threads.iter().filter(|(_, (mode, filters))| *mode != FILTERED || *filters < FILTERS);
    let loose: Vec<_> = loose.map(|(name, (mode, n))| format!("{name}: mode {mode}, {n} filters")).collect();
    let all = format!("a filter on each of {} threads", facts.threads.len());
    let ok = loose.is_empty() && !facts.threads.is_empty();
    check("system calls", ok, if ok { all } else { loose.join(", ") })
}

fn root(facts: &Facts) -> JailCheck {
    let writable = if facts.root_read_only { "read-only" } else { "WRITABLE" };
    let found = match facts.root_entries {
        0 => format!("empty, {writable}"),
        n => format!("{n} entries, {writable}"),
    };
    check("root", facts.root_entries == 0 && facts.root_read_only, found)
}

/// One directory: of proc, for its page map.
fn descriptors(kinds: &BTreeMap<String, usize>) -> JailCheck {
    let foreign = |kind: &&String| kind.starts_with("/dev/") && !DEVICES.contains(&kind.as_str());
    let directories = kinds.get("directory").copied().unwrap_or(0);
    let ok = directories <= 1 && !kinds.keys().any(|kind| foreign(&kind));
    let list: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    check("descriptors", ok, list.join(", "))
}

fn limits(facts: &Facts) -> JailCheck {
    let hard = |name: &str| facts.limits.get(name).and_then(|(_, hard)| *hard);
    let ok = LIMITS.iter().all(|(name, most)| hard(name).is_some_and(|hard| hard <= *most));
    let shown = |(name, _): &(&str, u64)| {
        let short = name.trim_start_matches("Max ");
        format!("{short} {}", hard(name).map_or_else(|| "unlimited".to_owned(), |hard| hard.to_string()))
    };
    check("limits", ok, LIMITS.iter().map(shown).collect::<Vec<_>>().join(", "))
}

fn reaper(facts: &Facts) -> JailCheck {
    let ok = facts.parent_number == Some(1);
    check(
        "reaper",
        ok,
        if ok { "process 1 of its pid namespace is its parent" } else { "its parent is a stranger" },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn jailed() -> Facts {
        let limits = LIMITS.iter().map(|(name, most)| ((*name).to_owned(), (Some(*most), Some(*most))));
        Facts {
            shared_namespaces: BTreeSet::new(),
            users: vec![1_000_000_007; 4],
            groups: vec![1_000_000_007; 4],
            supplementary: 0,
            capabilities: BTreeMap::new(),
            no_new_privileges: true,
            threads: BTreeMap::from([("forkd-vmm 12".to_owned(), (2, 3)), ("vcpu0 13".to_owned(), (2, 3))]),
            root_entries: 0,
            root_read_only: true,
            descriptors: BTreeMap::from([("/dev/kvm".to_owned(), 1), ("directory".to_owned(), 1)]),
            limits: limits.collect(),
            parent_number: Some(1),
        }
    }

    fn wrong(change: impl FnOnce(&mut Facts)) -> Vec<String> {
        let mut facts = jailed();
        change(&mut facts);
        let report = judge("sb-1", 12, &facts);
        let wrong: Vec<_> = report.checks.into_iter().filter(|check| !check.ok).collect();
        assert_eq!(report.ok, wrong.iter().all(|check| !check.needed));
        wrong.into_iter().map(|check| check.name).collect()
    }

    #[test]
    fn what_is_as_it_should_be_is_said_so() {
        assert!(wrong(|_| {}).is_empty());
    }

    #[test]
    fn each_hole_is_found() {
        assert_eq!(wrong(|f| f.shared_namespaces.extend(["net"])), ["net namespace"]);
        assert_eq!(wrong(|f| f.shared_namespaces.extend(["user"])), ["user namespace"]);
        assert_eq!(wrong(|f| f.users[2] = 0), ["user"]);
        assert_eq!(wrong(|f| (f.users, f.groups) = (vec![0; 4], vec![0; 4])), ["user"]);
        assert_eq!(wrong(|f| f.supplementary = 1), ["user"]);
        assert_eq!(wrong(|f| f.capabilities.extend([("CapBnd".to_owned(), 1)])), ["capabilities"]);
        assert_eq!(wrong(|f| f.no_new_privileges = false), ["no new privileges"]);
        assert_eq!(wrong(|f| f.threads.extend([("vcpu1 14".to_owned(), (0, 0))])), ["system calls"]);
        assert_eq!(wrong(|f| f.threads.clear()), ["system calls"]);
        assert_eq!(wrong(|f| f.root_entries = 20), ["root"]);
        assert_eq!(wrong(|f| f.root_read_only = false), ["root"]);
        assert_eq!(wrong(|f| f.descriptors.extend([("/dev/mem".to_owned(), 1)])), ["descriptors"]);
        assert_eq!(wrong(|f| f.descriptors.extend([("directory".to_owned(), 2)])), ["descriptors"]);
        assert_eq!(wrong(|f| f.limits.extend([("Max processes".to_owned(), (None, None))])), ["limits"]);
        assert_eq!(wrong(|f| f.parent_number = None), ["reaper"]);
    }
}
