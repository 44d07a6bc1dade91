//! The judgement: what each item is worth, and which way forkd runs.

use serde::Serialize;

use super::facts::{Facts, Job, Missing};
use super::probe::Probe;
use crate::ui;

const GIB: u64 = 1 << 30;
/// Without this much the machine's disk and one image do not fit.
const LEAST_DISK: u64 = 3 * GIB;
/// With this much there is room for a few images and snapshots.
const GOOD_DISK: u64 = 15 * GIB;
/// What follows where something of networks is missing.
const WITHOUT: &str = "sandboxes run without a network";
const LEAST_MEMORY_MIB: u64 = 2048;
const GOOD_MEMORY_MIB: u64 = 4096;
/// The cgroup controllers that limit sandboxes.
const LIMITS: [&str; 4] = ["memory", "cpu", "io", "pids"];

/// Where sandboxes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// On this computer.
    Native,
    /// In the emulated host.
    Machine,
}

/// What an item is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Not as it should be; forkd runs all the same.
    Warn,
    /// Has to be cured.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Item {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cure: Option<String>,
    #[serde(skip)]
    needed: Needed,
    /// Whether it failed, which is only a warning where forkd runs the other way.
    #[serde(skip)]
    failed: bool,
}

/// For what an item is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needed {
    Native,
    Machine,
    Always,
}

/// Everything, and what follows from it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// How forkd runs here; `None`: it does not.
    pub(crate) way: Option<Way>,
    pub(crate) items: Vec<Item>,
    pub(crate) summary: String,
}

impl Report {
    /// Judges.
    pub(crate) fn from(facts: &Facts) -> Self {
        let mut items = vec![
            kvm(&facts.kvm),
            root(facts.root),
            cgroup(facts.cgroup.as_deref()),
            network(&facts.missing),
            tun(facts.tun),
            disk("disk for sandboxes", Needed::Native, facts.store_bytes),
            memory(facts.memory_mib, facts.machine_runs),
            qemu(facts.qemu.as_deref()),
            disk("disk for machine", Needed::Machine, facts.machine_bytes),
            tools("machine tools", Job::Machine, Needed::Machine, &facts.missing),
            tools("image tools", Job::Making, Needed::Machine, &facts.missing),
        ];
        let fits = |way: Needed| {
            items
                .iter()
                .all(|i| i.verdict != Verdict::Fail || (i.needed != way && i.needed != Needed::Always))
        };
        let way = match (fits(Needed::Native), fits(Needed::Machine)) {
            (true, _) => Some(Way::Native),
            (false, true) => Some(Way::Machine),
            (false, false) => None,
        };
        for item in &mut items {
            // What the other way would need is worth knowing, but stops nothing.
            let other = match way {
                Some(Way::Native) => item.needed == Needed::Machine,
                Some(Way::Machine) => item.needed == Needed::Native,
                None => false,
            };
            if other && item.verdict == Verdict::Fail {
                item.verdict = Verdict::Warn;
            }
        }
        let summary = match way {
            Some(Way::Native) => "forkd runs here natively.",
            Some(Way::Machine) => {
                "forkd runs here in an emulated host (`forkd machine`), which it starts when it is needed. It is \
                 slower, and does the same."
            }
            None => "forkd cannot run here before what FAILs is cured.",
        };
        Self { way, items, summary: summary.to_owned() }
    }

    /// Why forkd does not run natively here, in a line.
    pub(crate) fn against_native(&self) -> String {
        self.listed(|i| i.needed == Needed::Native && i.failed)
    }

    /// What has to be cured, in a line.
    pub(crate) fn failed(&self) -> String {
        self.listed(|i| i.verdict == Verdict::Fail)
    }

    fn listed(&self, wanted: impl Fn(&Item) -> bool) -> String {
        let said = self.items.iter().filter(|i| wanted(i)).map(|i| format!("{}: {}", i.name, i.found));
        said.collect::<Vec<_>>().join("; ")
    }
}

fn item(name: &'static str, needed: Needed, verdict: Verdict, found: impl Into<String>, cure: &str) -> Item {
    let cure = (verdict != Verdict::Ok && !cure.is_empty()).then(|| cure.to_owned());
    Item { name, verdict, found: found.into(), cure, needed, failed: verdict == Verdict::Fail }
}

fn kvm(kvm: &Result<Probe, String>) -> Item {
    let judged = |verdict, found: String, cure: &str| item("kvm", Needed::Native, verdict, found, cure);
    let probe = match kvm {
        Ok(probe) => probe,
        Err(why) => {
            let cure =
                "forkd, forkd-vmm and forkd-agent lie in one folder: `cargo build --release` makes all three";
            return judged(Verdict::Fail, format!("not tried: {why}"), cure);
        }
    };
    match probe.kvm.as_str() {
        "usable" => judged(Verdict::Ok, format!("usable: {}", probe.detail), ""),
        "absent" => judged(
            Verdict::Fail,
            format!("absent: {}", probe.detail),
            "on real hardware switch virtualization on in the firmware and load kvm-intel or kvm-amd; in a cloud \
             choose a machine type with nested virtualization",
        ),
        _ => {
            let broken: Vec<_> = probe.items.iter().filter(|i| !i.ok).map(|i| i.name.as_str()).collect();
            let broken =
                if broken.is_empty() { String::new() } else { format!(" (fails: {})", broken.join(", ")) };
            judged(
                Verdict::Fail,
                format!("there, but it does not run unmodified guests: {}{broken}", probe.detail),
                "this computer interprets its guests; one with VMX or SVM runs them natively",
            )
        }
    }
}

fn root(root: bool) -> Item {
    let (verdict, found) = if root { (Verdict::Ok, "yes") } else { (Verdict::Fail, "no") };
    item("root", Needed::Always, verdict, found, "run forkd as root: it makes namespaces, cgroups and disks")
}

/// Only limits take it: sandboxes without one run anywhere.
fn cgroup(controllers: Option<&[String]>) -> Item {
    let judged = |verdict, found: &str, cure: &str| item("cgroup v2", Needed::Native, verdict, found, cure);
    match controllers {
        None => judged(
            Verdict::Warn,
            "not mounted at /sys/fs/cgroup (cgroup v1?): limits of sandboxes are refused, `forkd stats` knows less",
            "boot with systemd.unified_cgroup_hierarchy=1, or: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        ),
        Some(has) => {
            let lacking: Vec<_> =
                LIMITS.into_iter().filter(|wanted| !has.iter().any(|c| c == wanted)).collect();
            if lacking.is_empty() {
                return judged(Verdict::Ok, &format!("mounted, with {}", LIMITS.join(", ")), "");
            }
            judged(
                Verdict::Warn,
                &format!("mounted, without {}: limits of that are refused", lacking.join(", ")),
                "boot without cgroup_disable=, and with cgroup_no_v1=all so that v1 does not hold them",
            )
        }
    }
}

/// What networks of sandboxes take; without them sandboxes run all the same.
fn network(missing: &[Missing]) -> Item {
    let found = tools("nftables", Job::Network, Needed::Native, missing);
    if found.verdict != Verdict::Fail {
        return found;
    }
    let text = format!("{}: {WITHOUT}", found.found);
    Item { verdict: Verdict::Warn, failed: false, found: text, ..found }
}

fn tun(tun: bool) -> Item {
    let (verdict, found) = if tun {
        (Verdict::Ok, "/dev/net/tun".to_owned())
    } else {
        (Verdict::Warn, format!("no /dev/net/tun: {WITHOUT}"))
    };
    item("tun", Needed::Native, verdict, found, "modprobe tun")
}

fn disk(name: &'static str, needed: Needed, free: Option<u64>) -> Item {
    let cure = match needed {
        Needed::Machine => "free some, or put FORKD_MACHINE_DIR and FORKD_CACHE_DIR on a larger disk",
        _ => "free some, or put FORKD_ROOT on a larger disk",
    };
    let (verdict, found) = match free {
        None => (Verdict::Warn, "unknown".to_owned()),
        Some(free) if free < LEAST_DISK => (Verdict::Fail, format!("{} free", ui::size(free))),
        Some(free) if free < GOOD_DISK => (Verdict::Warn, format!("{} free", ui::size(free))),
        Some(free) => (Verdict::Ok, format!("{} free", ui::size(free))),
    };
    item(name, needed, verdict, found, cure)
}

/// Where the machine runs it has what it needs, and little else is left free.
fn memory(memory: Option<(u64, u64)>, machine_runs: bool) -> Item {
    let (verdict, found) = match memory {
        None => (Verdict::Warn, "unknown".to_owned()),
        Some((total, available)) => {
            let verdict = match available {
                a if a < LEAST_MEMORY_MIB && !machine_runs => Verdict::Fail,
                a if a < GOOD_MEMORY_MIB => Verdict::Warn,
                _ => Verdict::Ok,
            };
            (verdict, format!("{available} of {total} MiB available"))
        }
    };
    item("memory", Needed::Always, verdict, found, "end what takes it, or take a computer with 4 GiB or more")
}

fn qemu(version: Option<&str>) -> Item {
    let judged = |verdict, found: String, cure: &str| item("qemu", Needed::Machine, verdict, found, cure);
    match version {
        None => {
            judged(Verdict::Fail, "none".to_owned(), "packaging/deps.sh, or: apt-get install qemu-system-x86")
        }
        Some(version) => match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
            Some(10..) => judged(Verdict::Ok, version.to_owned(), ""),
            _ => judged(
                Verdict::Warn,
                format!("{version}, which emulates at half the speed of 10"),
                "packaging/deps.sh takes version 10 from Debian's backports",
            ),
        },
    }
}

fn tools(name: &'static str, job: Job, needed: Needed, missing: &[Missing]) -> Item {
    let missing: Vec<_> = missing.iter().filter(|m| m.job == job).collect();
    if missing.is_empty() {
        return item(name, needed, Verdict::Ok, "there", "");
    }
    let names: Vec<_> = missing.iter().map(|m| m.tool).collect();
    let mut packages: Vec<_> = missing.iter().map(|m| m.package).collect();
    packages.dedup();
    let cure =
        format!("packaging/deps.sh, or: apt-get install --no-install-recommends {}", packages.join(" "));
    item(name, needed, Verdict::Fail, format!("missing: {}", names.join(", ")), &cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(kvm: &str) -> Probe {
        Probe { kvm: kvm.to_owned(), detail: "why".to_owned(), items: vec![] }
    }

    fn good() -> Facts {
        Facts {
            kvm: Ok(probe("usable")),
            root: true,
            cgroup: Some(["cpu", "io", "memory", "pids"].map(str::to_owned).to_vec()),
            tun: true,
            store_bytes: Some(100 * GIB),
            machine_bytes: Some(100 * GIB),
            memory_mib: Some((24_000, 20_000)),
            machine_runs: false,
            qemu: Some("10.0.2".into()),
            missing: vec![],
        }
    }

    fn missing(tool: &'static str, package: &'static str, job: Job) -> Missing {
        Missing { tool, package, job }
    }

    fn verdict(report: &Report, name: &str) -> Verdict {
        report.items.iter().find(|i| i.name == name).unwrap().verdict
    }

    #[test]
    fn a_computer_with_kvm_runs_natively_and_needs_no_qemu() {
        let report = Report::from(&good());
        assert_eq!(report.way, Some(Way::Native));
        assert!(report.items.iter().all(|i| i.verdict == Verdict::Ok && i.cure.is_none()));
        let lean =
            Facts { qemu: None, missing: vec![missing("ssh", "openssh-client", Job::Machine)], ..good() };
        let report = Report::from(&lean);
        assert_eq!(report.way, Some(Way::Native));
        assert_eq!(verdict(&report, "qemu"), Verdict::Warn);
    }

    #[test]
    fn without_usable_kvm_it_runs_in_the_machine() {
        for kvm in [Err("forkd-vmm is not there".to_owned()), Ok(probe("absent")), Ok(probe("unusable"))] {
            let lean = missing("nft", "nftables", Job::Network);
            let report =
                Report::from(&Facts { kvm, cgroup: None, tun: false, missing: vec![lean], ..good() });
            assert_eq!(report.way, Some(Way::Machine));
            for item in ["kvm", "cgroup v2", "tun", "nftables"] {
                assert_eq!(verdict(&report, item), Verdict::Warn, "{item}");
            }
            assert!(report.against_native().starts_with("kvm: "), "{}", report.against_native());
            assert!(!report.against_native().contains("tun"));
        }
    }

    #[test]
    fn what_sandboxes_run_without_is_only_a_warning() {
        let lean = missing("nft", "nftables", Job::Network);
        let report = Report::from(&Facts { cgroup: None, tun: false, missing: vec![lean], ..good() });
        assert_eq!(report.way, Some(Way::Native));
        for item in ["cgroup v2", "tun", "nftables"] {
            assert_eq!(verdict(&report, item), Verdict::Warn, "{item}");
        }
    }

    #[test]
    fn where_neither_works_the_cures_are_named() {
        let kvm = Ok(probe("absent"));
        let lacking = missing("mmdebstrap", "mmdebstrap", Job::Making);
        let report = Report::from(&Facts { kvm, qemu: None, missing: vec![lacking], ..good() });
        assert_eq!(report.way, None);
        for item in ["kvm", "qemu", "image tools"] {
            assert_eq!(verdict(&report, item), Verdict::Fail, "{item}");
            assert!(report.items.iter().find(|i| i.name == item).unwrap().cure.is_some(), "{item}");
        }
        assert!(report.failed().contains("missing: mmdebstrap"), "{}", report.failed());
    }

    #[test]
    fn room_is_judged_by_what_is_free() {
        let judged = |free| disk("disk", Needed::Native, Some(free)).verdict;
        assert_eq!((judged(GIB), judged(5 * GIB)), (Verdict::Fail, Verdict::Warn));
        assert_eq!(memory(Some((64_000, 1000)), false).verdict, Verdict::Fail);
        assert_eq!(memory(Some((4000, 3000)), false).verdict, Verdict::Warn);
        assert_eq!(memory(Some((8000, 1000)), true).verdict, Verdict::Warn, "the machine has the rest");
        assert_eq!(Report::from(&Facts { root: false, ..good() }).way, None);
        let full = Facts { store_bytes: Some(GIB), ..good() };
        assert_eq!(Report::from(&full).way, Some(Way::Machine), "the machine's disk may lie elsewhere");
        assert_eq!(Report::from(&Facts { machine_bytes: Some(GIB), ..full }).way, None);
    }

    #[test]
    fn an_old_qemu_or_a_missing_controller_is_noticed() {
        assert_eq!(qemu(Some("7.2.19")).verdict, Verdict::Warn);
        assert_eq!(qemu(Some("11.0.0")).verdict, Verdict::Ok);
        let without = ["cpu".to_owned(), "pids".to_owned()];
        assert_eq!(cgroup(Some(&without)).verdict, Verdict::Warn);
        let all = LIMITS.map(str::to_owned);
        assert_eq!(cgroup(Some(&all)).verdict, Verdict::Ok);
        assert!(cgroup(Some(&all[..1])).found.contains("without cpu, io, pids"));
    }
}
