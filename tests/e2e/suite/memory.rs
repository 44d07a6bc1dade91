//! Memory, processors and clocks of children.

use serde_json::{Value, json};

use crate::support::{Children, NUMPY, Snapshot, at_soak, bare, each, eventually, host_sh, numpy, together};

/// Threads on all processors read the clock one after the other; then a sleep, and a thread that was in the middle
/// of sleeping when the parent was frozen.
const CLOCKS: &str = "
def look(cpu):
    os.sched_setaffinity(0, {cpu})
    for _ in range(100):
        with lock:
            now = time.monotonic()
            backwards.append(now < latest[0])
            latest[0] = now
lock, latest, backwards = threading.Lock(), [0.0], []
threads = [threading.Thread(target=look, args=(cpu,)) for cpu in range(os.cpu_count())]
for thread in threads: thread.start()
for thread in threads: thread.join()
before, ticked = time.monotonic(), ticks[0]
while ticks[0] < ticked + 3: time.sleep(0.2)
{'cpus': os.cpu_count(), 'looks': len(backwards), 'backwards': sum(backwards), 'slept': time.monotonic() - before}
";

const TICKING: &str = "
import os, threading, time
ticks = [0]
def tick():
    while True:
        time.sleep(0.1)
        ticks[0] += 1
threading.Thread(target=tick, daemon=True).start()
";

/// Writes half of the free memory, each page with its number.
const FILL: &str = "
free = next(int(line.split()[1]) for line in open('/proc/meminfo') if line.startswith('MemAvailable'))
pages = bytearray(free // 2 << 10)
for page, at in enumerate(range(0, len(pages), 4096)): pages[at] = page & 255
all(pages[at] == page & 255 for page, at in enumerate(range(0, len(pages), 4096)))
";

fn time_goes_on(vcpus: u64) {
    let _world = together();
    let count = vcpus.to_string();
    let snapshot = Snapshot::make(&format!("e2e-cpus-{count}"), &["--vcpus", &count, "--warm", TICKING]);
    let children = Children::fork(&snapshot.tag, 2);
    for seen in each(&children, |child| child.value(CLOCKS)) {
        assert_eq!((&seen["cpus"], &seen["backwards"]), (&json!(vcpus), &json!(0)), "{seen}");
        assert_eq!(seen["looks"], vcpus * 100, "{seen}");
        assert!(seen["slept"].as_f64().is_some_and(|s| (0.2..100.0).contains(&s)), "{seen}");
    }
}

#[test]
fn time_goes_on_with_any_number_of_processors() {
    for vcpus in at_soak("processors", vec![1, 2, 4], vec![2]) {
        time_goes_on(vcpus);
    }
}

#[test]
fn guests_of_every_size_are_whole() {
    let _world = together();
    for mib in at_soak("MiB of memory", vec![128_u64, 2048, 3584], vec![128]) {
        let snapshot = Snapshot::make(
            "e2e-size",
            &["--mem", &mib.to_string(), "--warm", "kept = bytearray(b'forkd' * 1000000)"],
        );
        let children = Children::fork(&snapshot.tag, 1);
        let total: u64 = children[0].sh("awk '/MemTotal/ {print $2}' /proc/meminfo").parse().unwrap();
        assert!((mib * 1024 * 6 / 10..mib * 1024).contains(&total), "{mib} MiB: {total} KiB");
        // What the parent wrote is there, and half of what is free can be written.
        assert_eq!(children[0].value("kept == b'forkd' * 1000000"), true);
        assert_eq!(children[0].value(FILL), true);
    }
}

#[test]
fn children_do_not_see_what_another_writes_to_memory() {
    let _world = together();
    let children = Children::fork(numpy(), 3);
    let values = each(&children, |child| {
        child.eval(&format!("me = {:?}\nmine = numpy.full(10_000, me)", child.id));
        child.value("[bool((mine == me).all()), mine[-1]]")
    });
    for (child, value) in children.iter().zip(values) {
        assert_eq!(value, json!([true, child.id]));
    }
}

#[test]
fn a_child_has_little_of_its_own() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    children[0].eval("numpy.zeros(5)");
    let stats = children[0].stats();
    assert!((1..4 << 20).contains(&stats.monitor_private_bytes), "{stats:?}");
    assert!((1 << 16..64 << 20).contains(&stats.guest_private_bytes), "{stats:?}");
    assert!(stats.guest_shared_bytes > 1 << 20, "{NUMPY}: {stats:?}");
}

#[test]
fn memory_that_a_guest_frees_goes_back_to_the_host() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let child = &children[0];
    let own = || child.stats().guest_private_bytes;
    let before = own();
    child.eval("taken = bytearray(64 << 20)\nfor at in range(0, len(taken), 4096): taken[at] = 1");
    let full = own();
    assert!(full > before + (60 << 20), "{before} {full}");
    child.eval("del taken");
    // What is free is reported some time later, in blocks of 2 MiB.
    eventually("most of it is given back", || (own() < full - (40 << 20)).then_some(()));
    assert_eq!(child.value("sum(range(1000))"), 499_500);
}

#[test]
fn the_limit_of_memory_is_the_cgroups() {
    let _world = together();
    let children = Children::fork_with(bare(), 1, &["--memory-limit-mib", "200"]);
    let child = &children[0];
    assert_eq!(child.info.memory_limit_mib, Some(200));
    let pid = child.info.pid.unwrap();
    let max = host_sh(&format!("cat /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/{pid}/cgroup)/memory.max"));
    assert_eq!(max, (200_u64 << 20).to_string());
    assert_eq!(child.value("1 + 1"), Value::from(2));
}
