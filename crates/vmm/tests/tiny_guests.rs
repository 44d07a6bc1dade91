//! Guests of a few instructions on real KVM: one exit type each, then saving and restoring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;

use common::{Monitor, Saved, bytes, copy, from_bytes};
use forkd_memory::extents::{Extent, read_table, write_table};
use forkd_protocol::control::{MAX_HOT_PAGES, Phase, RefusalClass, Request};
use forkd_testkit::{guard, tiny};
use forkd_vmm::statefile;

macro_rules! kvm_test {
    (fn $name:ident() $body:block) => {
        #[test]
        fn $name() {
            if guard::kvm() $body
        }
    };
}

kvm_test! {
    fn a_port_write_reaches_the_console() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::HELLO).unwrap();
        assert_eq!(monitor.printed(), *b"A");
        assert_eq!(monitor.status().phase, Phase::Running);
    }
}

kvm_test! {
    fn a_load_outside_ram_reads_the_device() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::MMIO).unwrap();
        assert_eq!(monitor.printed(), *b"virt");
    }
}

kvm_test! {
    fn the_reset_line_ends_the_monitor_with_its_last_words() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::RESET).unwrap();
        assert_eq!(monitor.end(), (true, r#"{"how":"shutdown"}"#.to_owned()));
    }
}

kvm_test! {
    fn a_triple_fault_is_named_in_the_last_words() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::FAULT).unwrap();
        let (ok, words) = monitor.end();
        assert!(ok);
        assert!(words.contains("fault"), "{words}");
    }
}

kvm_test! {
    fn two_restores_of_one_state_diverge_without_touching_the_file() {
        let mut parent = Monitor::start();
        parent.boot(tiny::ECHO).unwrap();
        assert_eq!(parent.printed(), *b"R");
        parent.type_in(b"p");
        assert_eq!(parent.printed(), *b"p0");
        let saved = parent.snapshot(false);
        let before = bytes(&saved.memory);
        let mut children = [Monitor::start(), Monitor::start()];
        for (child, letter) in children.iter_mut().zip([b'a', b'b']) {
            child.restore(&saved, true).unwrap();
            child.type_in(&[letter]);
            assert_eq!(child.printed(), [letter, b'p'], "the child goes on from its parent's memory");
        }
        for (child, letter) in children.iter_mut().zip([b'a', b'b']) {
            child.type_in(b"z");
            assert_eq!(child.printed(), [b'z', letter], "the child sees its own memory");
            let changed = child.status().changed_pages;
            assert!((1..64).contains(&changed), "{changed} pages changed");
        }
        assert!(bytes(&saved.memory) == before, "the layer is as it was");
    }
}

kvm_test! {
    fn a_paused_machine_stands_still_and_goes_on() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::COUNT).unwrap();
        assert_eq!(monitor.printed(), *b"R");
        monitor.ask(Request::Pause, &[]).unwrap();
        let counts = [(); 2].map(|()| counter(&monitor.snapshot(false)));
        assert_eq!(counts[0], counts[1]);
        monitor.ask(Request::Resume, &[]).unwrap();
        let mut later = counter(&monitor.snapshot(true));
        while later == counts[1] {
            later = counter(&monitor.snapshot(true));
        }
        assert!(later > counts[1]);
    }
}

kvm_test! {
    fn what_is_restored_and_saved_again_is_the_same() {
        let mut parent = Monitor::start();
        parent.boot_with(tiny::COUNT, 2, 256).unwrap();
        assert_eq!(parent.printed(), *b"R");
        let saved = parent.snapshot(false);
        let mut child = Monitor::start();
        child.restore(&saved, false).unwrap();
        assert_eq!(child.status().phase, Phase::Paused);
        let again = child.snapshot(false);
        assert_eq!(comparable(&saved), comparable(&again));
        let (mut first, mut second) = (bytes(&saved.memory), bytes(&again.memory));
        for memory in [&mut first, &mut second] {
            let generation = usize::try_from(forkd_vmm::layout::GENERATION_PAGE).unwrap();
            memory[generation..generation + 16].fill(0);
        }
        assert!(first == second, "memory is the same but for the generation id");
    }
}

kvm_test! {
    fn a_counter_goes_on_from_where_it_stood() {
        let mut parent = Monitor::start();
        parent.boot(tiny::COUNT).unwrap();
        assert_eq!(parent.printed(), *b"R");
        let mut saved = parent.snapshot(false);
        for _ in 0..5 {
            let mut child = Monitor::start();
            child.restore(&saved, true).unwrap();
            let mut next = child.snapshot(true);
            while counter(&next) == counter(&saved) {
                next = child.snapshot(true);
            }
            assert!(counter(&next) > counter(&saved));
            saved = next;
        }
    }
}

kvm_test! {
    fn what_one_child_changed_is_ready_in_the_next() {
        let mut parent = Monitor::start();
        parent.boot(tiny::ECHO).unwrap();
        assert_eq!(parent.printed(), *b"R");
        let saved = parent.snapshot(false);
        let mut scout = Monitor::start();
        scout.restore(&saved, true).unwrap();
        scout.type_in(b"s");
        assert_eq!(scout.printed(), *b"s0");
        scout.ask(Request::Pause, &[]).unwrap();
        let hot = bytes(&scout.changed());
        let pages: u64 =
            read_table(&mut hot.as_slice(), 1 << 20).unwrap().iter().map(|extent| extent.pages).sum();
        assert_eq!(pages, scout.status().changed_pages);

        let mut child = Monitor::start();
        child.restore_hot(&saved, from_bytes(&hot), false).unwrap();
        assert!(child.status().changed_pages >= pages, "they are there before it runs");
        child.ask(Request::Resume, &[]).unwrap();
        child.type_in(b"k");
        assert_eq!(child.printed(), *b"k0", "and read as before");
    }
}

kvm_test! {
    fn a_list_of_hot_pages_that_is_no_good_is_left_alone() {
        let mut parent = Monitor::start();
        parent.boot(tiny::ECHO).unwrap();
        assert_eq!(parent.printed(), *b"R");
        let saved = parent.snapshot(false);
        let table = |extents: &[(u64, u64)]| {
            let extents = extents.iter().map(|&(first_page, pages)| Extent { first_page, pages });
            let mut bytes = Vec::new();
            write_table(&extents.collect::<Vec<_>>(), &mut bytes).unwrap();
            from_bytes(&bytes)
        };
        let too_many = table(&[(0, MAX_HOT_PAGES + 1)]);
        let outside = table(&[(0, 100), (40_000, 1)]);
        for bad in [too_many, outside, table(&[(0, 1 << 30)]), from_bytes(b"nonsense")] {
            let mut child = Monitor::start();
            child.restore_hot(&saved, bad, false).unwrap();
            assert!(child.status().changed_pages < 64);
            child.ask(Request::Resume, &[]).unwrap();
            child.type_in(b"k");
            assert_eq!(child.printed(), *b"k0");
        }
    }
}

kvm_test! {
    fn damaged_and_foreign_snapshots_are_refused_and_the_monitor_still_takes_a_good_one() {
        let mut parent = Monitor::start();
        parent.boot(tiny::ECHO).unwrap();
        assert_eq!(parent.printed(), *b"R");
        let saved = parent.snapshot(false);
        let good = bytes(&saved.state);
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 4;
        let mut newer = good.clone();
        newer[8] = 99;
        let mut foreign_cpu = statefile::read(&mut good.as_slice()).unwrap();
        for entry in foreign_cpu.vcpus[0].cpuid.iter_mut().filter(|e| e.function == 0) {
            entry.ebx = u32::from_le_bytes(*b"Else");
        }
        let mut other_cpu = Vec::new();
        statefile::write(&foreign_cpu, &mut other_cpu).unwrap();

        let mut child = Monitor::start();
        for (what, state, class) in [
            ("flipped", flipped, RefusalClass::Corrupt),
            ("cut", good[..good.len() - 9].to_vec(), RefusalClass::Corrupt),
            ("newer", newer, RefusalClass::Corrupt),
            ("other processor", other_cpu, RefusalClass::HostUnfit),
        ] {
            let refusal =
                child.restore_from(from_bytes(&state), saved.memory.try_clone().unwrap(), true).unwrap_err();
            assert_eq!(refusal.class, class, "{what}: {}", refusal.message);
            assert_eq!(child.status().phase, Phase::Waiting, "{what}");
        }
        let short = tempfile::tempfile().unwrap();
        short.set_len(1 << 20).unwrap();
        let refusal = child.restore_from(copy(&saved.state), short, true).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Corrupt, "{}", refusal.message);
        child.restore(&saved, true).unwrap();
        child.type_in(b"k");
        assert_eq!(child.printed(), *b"k0");
    }
}

kvm_test! {
    fn requests_out_of_order_or_bounds_are_refused() {
        let mut monitor = Monitor::start();
        assert_eq!(monitor.ask(Request::Pause, &[]).unwrap_err().class, RefusalClass::Caller);
        for (vcpus, memory) in [(0, 128), (9, 128), (1, 127), (1, 16385)] {
            assert_eq!(monitor.boot_with(tiny::HELLO, vcpus, memory).unwrap_err().class, RefusalClass::Caller);
        }
        monitor.boot(tiny::HELLO).unwrap();
        assert_eq!(monitor.boot(tiny::HELLO).unwrap_err().class, RefusalClass::Caller);
    }
}

kvm_test! {
    fn a_lost_engine_is_replaced_by_the_next() {
        let mut monitor = Monitor::start();
        monitor.boot(tiny::ECHO).unwrap();
        assert_eq!(monitor.printed(), *b"R");
        let path = monitor.control_path();
        monitor.control = forkd_protocol::control::Connection::new(
            std::os::unix::net::UnixStream::connect(&path).unwrap(),
        );
        assert_eq!(monitor.status().phase, Phase::Running);
        monitor.ask(Request::Stop, &[]).unwrap();
        assert_eq!(monitor.end().1, r#"{"how":"stopped"}"#);
    }
}

kvm_test! {
    fn machines_of_every_size_are_saved_whole() {
        for mib in [128, 3072, 3584, 6144] {
            let mut parent = Monitor::start();
            parent.boot_with(tiny::ECHO, 1, mib).unwrap();
            assert_eq!(parent.printed(), *b"R");
            let saved = parent.snapshot(false);
            let mut child = Monitor::start();
            child.restore(&saved, true).unwrap();
            child.type_in(b"x");
            assert_eq!(child.printed(), *b"x0", "{mib} MiB");
        }
    }
}

fn counter(saved: &Saved) -> u64 {
    let mut number = [0; 8];
    saved.memory.read_exact_at(&mut number, tiny::COUNTER).unwrap();
    u64::from_le_bytes(number)
}

/// A saved state without what moves by itself: the time stamp counter and clocks.
fn comparable(saved: &Saved) -> String {
    const TIME: [u32; 3] = [0x10, 0x6e0, 0x3b];
    let mut state = statefile::read(&mut bytes(&saved.state).as_slice()).unwrap();
    state.vm.clock_ns = 0;
    for vcpu in &mut state.vcpus {
        vcpu.msrs.retain(|msr| !TIME.contains(&msr.index));
    }
    format!("{state:?}")
}
