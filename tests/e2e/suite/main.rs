//! What people do with forkd, done with the real command and the real API: sandboxes are made, used and ended.
//!
//! `packaging/run-tests.py e2e` starts a controller (in the machine, where this computer has no usable KVM) and
//! runs these. By hand: `FORKD_URL` names the controller, `FORKD_LIBEXEC` the folder of the programs. Counts are
//! small; with `FORKD_SOAK=1` they are large.
//!
//! An emulated host is some thirty times slower than this computer, so nothing here waits for a guessed time:
//! what is waited for is an event, with a bound that only a hang reaches.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

mod branch;
mod branch_load;
mod build;
mod bundle;
mod client;
mod crash;
mod eval;
mod exec;
mod hygiene;
mod identity;
mod inside;
mod jail;
mod life;
mod limits;
mod memory;
mod network;
mod pause;
mod secrets;
mod store;
