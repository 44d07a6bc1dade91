//! Processes of the workload.
//!
//! ```text
//! command   what is asked for, checked          stream   one pipe or terminal
//! spawner   makes the process, in its cgroup    drain    reads output to its right end
//! tree      a process with all descendants      exec     run to the end, output collected
//! exit      how it ended                        session  long-lived, attached to and detached from
//!                                               hub      a session's output for any number of readers
//! ```

mod command;
mod drain;
mod exec;
mod exit;
mod hub;
mod session;
mod spawner;
mod stream;
mod tree;

pub(crate) use command::{Command, StartError, expand};
pub(crate) use exec::{ExecLimits, execute};
pub(crate) use exit::Exit;
pub(crate) use hub::{Next, Reader};
pub(crate) use session::{InputError, Session, SessionSpec, Sessions, Source};
pub(crate) use spawner::{Child, Ended, Spawner, Wiring};
pub(crate) use stream::Stream;
pub(crate) use tree::Tree;
