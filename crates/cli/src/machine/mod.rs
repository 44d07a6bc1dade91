//! The machine: an emulated host with a complete KVM, for computers that have none.
//!
//! ```text
//!   this computer                               the machine (QEMU, software emulation of a CPU with SVM)
//!   forkd machine start                         ramdisk: modules, forkd's programs, keys, scripts
//!     root disk    ~/.cache/forkd  --read-only-->  /    (with a throw-away layer in memory over it)
//!     data disk    <state>/data.raw ------------>  /var/lib/forkd      stays
//!     127.0.0.1:8889  -------------------------->  forkd serve
//!     127.0.0.1:<ssh port>  -------------------->  sshd
//! ```
//!
//! There is one engine: what runs in the machine is the same forkd.

mod console;
mod dirs;
mod disks;
mod error;
mod initrd;
mod ports;
pub(crate) mod process;
pub(crate) mod programs;
mod qemu;
mod record;
mod shell_line;
mod ssh;
mod start;
mod stop;
mod swap;
pub(crate) mod tools;
mod wait;

pub(crate) use dirs::{Dirs, tail};
pub(crate) use error::MachineError;
pub(crate) use qemu::version as qemu_version;
pub(crate) use record::Record;
pub(crate) use shell_line::{owner_token, record_at, serves, shell_line};
pub(crate) use ssh::Ssh;
pub(crate) use start::{StartOptions, available_mib, start, total_mib};
pub(crate) use stop::{remove, stop};
pub(crate) use wait::{Until, answers};
