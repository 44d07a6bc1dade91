//! Snapshots that leave one controller and arrive at another, by the real command: as files, through a folder, a web
//! server and a bucket. Controllers have real engines and stores; no guest is needed for that.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod bucket;
mod files;
mod hubs;
mod support;
