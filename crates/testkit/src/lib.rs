//! Guards and builders for tests.
