//! A hub: a plain folder of content-addressed objects, in an S3 bucket, behind any web server, or on a disk.
//!
//! ```text
//!   index.json              all tags: what a web server cannot list
//!   tags/<tag>.json         a tag: which bundle it names
//!   bundles/<digest>.json   a bundle's document
//!   objects/<2>/<hash>.zst  an object as it travels; <2> are the first two digits of its hash
//! ```
//!
//! Nothing that a hub holds is believed: documents are read to a bound and compared with their names here, objects are
//! unpacked and hashed by the controller that takes them in.
//!
//! ```text
//!   place   URLs: where a hub is, and which tag in it
//!   hub     reading and writing one
//! ```
#![forbid(unsafe_code)]

mod error;
mod hub;
mod place;

pub use error::HubError;
pub use hub::Hub;
pub use place::Place;
