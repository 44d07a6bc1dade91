//! Images out of Dockerfiles, without Docker: each line that changes the disk is done in a fork of what the line before it
//! made, and kept as a snapshot that is named after everything that went into it. So nothing is done twice, and a build
//! that is run again begins at the first line that is another one.
//!
//! ```text
//!   read      text into instructions; what is not understood is refused by its line
//!   words     quotes, variables, lists
//!   plan      instructions into steps: what is run and copied, as whom, where
//!   pattern   names with * and ?, and .dockerignore
//!   files     what a COPY takes, as an archive
//!   build     does the steps
//! ```

mod build;
mod files;
mod pattern;
mod plan;
mod read;
mod words;

use forkd_protocol::error::ErrorClass;

pub(crate) use build::{Wanted, build};

use crate::error::CliError;

/// Something that a line of a Dockerfile says and that is not done.
fn at_line(line: usize, what: impl std::fmt::Display) -> CliError {
    CliError::local(ErrorClass::Caller, format!("line {line} of the Dockerfile: {what}"))
}
