//! What the registry keeps for the service around sandboxes: tokens, tenants, claimed tags, the head of the audit log.

mod claims;
mod tenants;
mod tokens;

pub(crate) use claims::{keep_owner, owner_in};
pub use tenants::AuditHead;
pub use tokens::TokenRow;
