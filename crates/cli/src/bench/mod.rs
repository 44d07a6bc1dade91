//! Measuring: how fast forks are and what they cost, and whether that is what it should be.
//!
//! ```text
//!   product   children of a warm Python through the controller: restored, answered, evaluated; memory while alive
//!   branch    what branching costs the sandbox that is branched: a ticker in it, live, diff and full
//!   chain     forks of a long chain of snapshots against forks of a flat one
//!   exec      what forkd adds to a command or an evaluation, beside an echo; how fast output streams, beside a copy
//!   churn     forks and kills again and again, and what they leave behind
//!   bare      forkd-vmm alone, a guest that answers a ping on its serial line: what the monitor itself takes
//! ```
//!
//! Benchmarks report. A goal that is not reached is no failure of the command, and what was measured before
//! something broke is shown.

pub(crate) mod bare;
pub(crate) mod branch;
pub(crate) mod chain;
pub(crate) mod churn;
pub(crate) mod exec;
mod goal;
pub(crate) mod product;
mod report;
mod room;
mod session;
mod spread;
mod stop;

pub(crate) use bare::Against;
pub(crate) use report::Report;
pub(crate) use session::Session;
pub(crate) use stop::Stop;
