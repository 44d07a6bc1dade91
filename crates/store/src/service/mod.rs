//! What the registry keeps for the service around sandboxes: tokens, tenants, claimed tags, answers
//! given again, workspaces, what happened, the head of the audit log.

mod claims;
mod events;
mod keys;
mod tenants;
mod tokens;
mod workspaces;

pub(crate) use claims::{keep_owner, owner_in};
pub use keys::{Answered, KeyState};
pub use tenants::AuditHead;
pub use tokens::TokenRow;
pub use workspaces::WorkspaceRow;
