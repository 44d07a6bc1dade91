//! Guards and builders for tests.
//!
//! A test that needs what the computer may lack asks a guard here: it says *skipped* loudly, and fails instead
//! where `FORKD_TEST_REQUIRE` demands the thing.
#![forbid(unsafe_code)]

pub mod fault;
pub mod fuzz;
pub mod guard;
pub mod room;
pub mod tiny;
pub mod written;
