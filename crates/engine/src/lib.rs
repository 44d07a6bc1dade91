//! The product: sandbox life, fork policy, snapshots. No HTTP, no CLI.
