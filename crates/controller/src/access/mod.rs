//! Who may do what.
//!
//! ```text
//!   hosts     which names a loopback listener answers to: nothing that a browser was lured to
//!   secret    tokens: made, read, weighed, hashed
//!   keyring   all tokens of this controller; who a credential is
//!   caller    who asks, and what of what there is that one may see and change
//!   table     what each route demands
//!   guard     the layer that asks all of these, before anything else is done
//!   quota     what a tenant may have
//! ```

mod caller;
mod guard;
mod hosts;
mod keyring;
mod quota;
mod secret;
mod table;

pub(crate) use caller::Caller;
pub(crate) use guard::{Peer, guard, sandbox_of, snapshot_of};
pub use hosts::Hosts;
pub(crate) use keyring::Keyring;
pub(crate) use quota::{Promise, Quotas};
pub(crate) use secret::mint;
pub use secret::{ChosenToken, WeakToken};
pub(crate) use table::{Reach, Rule, rule_of};
