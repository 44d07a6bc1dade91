//! One file per noun. A handler takes the request apart, calls one method and puts the answer together.
//!
//! A handler is dropped where its client goes away: the engine undoes what was half done, so that nothing is
//! left that nobody knows of.

pub(crate) mod agent;
pub(crate) mod artifacts;
pub(crate) mod audit;
pub(crate) mod bundles;
pub(crate) mod chains;
pub(crate) mod events;
pub(crate) mod host;
pub(crate) mod jail;
pub(crate) mod meta;
pub(crate) mod network;
pub(crate) mod pause;
pub(crate) mod ports;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod snapshots;
pub(crate) mod tenants;
pub(crate) mod tokens;
pub(crate) mod workspaces;
