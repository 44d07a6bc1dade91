//! The terminal of this process, where it has one.

use std::io;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// Every key reaches the program at the other end, until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw(Termios);

impl Raw {
    /// `None` where standard input is no terminal.
    pub(crate) fn enter() -> Result<Option<Self>, CliError> {
        let Ok(before) = tcgetattr(io::stdin()) else { return Ok(None) };
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)
            .map_err(|e| CliError::io("changing the terminal", e.into()))?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Columns and rows of the terminal, or of one that everybody has.
pub(crate) fn size() -> (u16, u16) {
    let found = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    match found {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}

/// Tells when the terminal gets another size.
pub(crate) fn resizes() -> Result<Signal, CliError> {
    signal(SignalKind::window_change()).map_err(|e| CliError::io("listening for signals", e))
}
