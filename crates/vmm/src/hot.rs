//! Pages that every child of a snapshot changes as soon as it runs, made ready before it does.
//!
//! A child that finds them in place is not stopped for each of them twice: once to read what it is about to change,
//! and once to be given its own copy. Which pages these are is another child's word, so a list that is no good, an
//! older kernel or too little memory keep nobody from starting.

use std::fs::File;
use std::io::BufReader;

use forkd_kvm::Vcpu;
use forkd_memory::extents::{Extent, read_table};
use forkd_memory::layout::Layout;
use forkd_memory::{GuestRam, PAGE_SIZE, map};
use forkd_protocol::control::{FdRole, MAX_HOT_PAGES};

use crate::handed::{FromStart, Handed};

/// The list, where there is one that is any good.
pub(crate) fn read(ram_layout: &Layout, handed: &mut Handed) -> Vec<Extent> {
    let Some(table) = handed.take(FdRole::Hot).map(File::from) else { return Vec::new() };
    let hot = read_table(&mut BufReader::new(FromStart::new(&table)), ram_layout.end() / PAGE_SIZE);
    let few = |hot: &Vec<Extent>| hot.iter().map(|e| e.pages).sum::<u64>() <= MAX_HOT_PAGES;
    hot.ok().filter(few).unwrap_or_default()
}

/// Makes private copies of the pages; tells whether they are there.
pub(crate) fn copy(ram: &GuestRam, hot: &[Extent]) -> bool {
    map::copy_early(ram, hot).is_ok()
}

/// Enters the copies into the guest's page tables, only as long as it works: nothing depends on it.
pub(crate) fn enter(hot: &[Extent], vcpus: &[Vcpu]) {
    if let Some(first) = vcpus.first() {
        let _ = hot.iter().all(|e| first.map_early(e.first_page * PAGE_SIZE, e.pages * PAGE_SIZE));
    }
}
