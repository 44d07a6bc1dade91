//! What can go wrong in a verb, and the only place that turns it into an exit code and a hint.

use std::error::Error as StdError;
use std::io;

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::NameError;
use forkd_protocol::rest::ErrorBody;

/// A cause whose type does not matter here.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The table that `forkd --help` ends with.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the evaluated code raised an error, or a check found something amiss
  2    the request is wrong
  3    what it names does not exist
  4    it exists already, is in use or not in a state for this
  5    no memory, disk or slot is left for it
  6    this host cannot do it (see `forkd doctor`)
  7    the guest failed or did not answer
  8    stored data is damaged
  9    no controller answers
  10   anything else
exec and run end with the command's own code: 128+N after signal N, 124 after
a timeout, 125 where forkd itself failed.";

/// Exit code of exec and run where forkd failed, not the command.
pub(crate) const EXIT_FORKD_FAILED: u8 = 125;
/// Exit code of exec and run after a timeout.
pub(crate) const EXIT_TIMED_OUT: u8 = 124;

/// Why a verb did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The controller refused or failed; its own words.
    #[error("{}", .body.error)]
    Api {
        /// HTTP status.
        status: u16,
        /// What it said.
        body: ErrorBody,
    },
    /// Nothing answers there.
    #[error("no controller answers at {endpoint}")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// Something on this side failed.
    #[error("{message}")]
    Local {
        /// What kind of failure it is.
        class: ErrorClass,
        /// What was being done, to what.
        message: String,
        /// Why it failed.
        #[source]
        source: Option<BoxError>,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A failure before or around the command of `exec` and `run`.
    #[error(transparent)]
    AroundCommand(Box<CliError>),
}

impl CliError {
    /// A failure on this side.
    pub(crate) fn local(class: ErrorClass, message: impl Into<String>) -> Self {
        Self::Local { class, message: message.into(), source: None, hint: None }
    }

    /// A wrong request.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::local(ErrorClass::Caller, message)
    }

    /// A failed system call, with what it was for.
    pub(crate) fn io(doing: impl Into<String>, source: io::Error) -> Self {
        let class = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorClass::Exhausted,
            io::ErrorKind::NotFound => ErrorClass::NotFound,
            _ => ErrorClass::Internal,
        };
        Self::caused(class, doing, source)
    }

    /// A failure on this side with its cause.
    pub(crate) fn caused(class: ErrorClass, doing: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Local { class, message: doing.into(), source: Some(source.into()), hint: None }
    }

    /// The same with advice that only this place knows.
    pub(crate) fn with_hint(mut self, advice: impl Into<String>) -> Self {
        if let Self::Local { hint, .. } = &mut self {
            *hint = Some(advice.into());
        }
        self
    }

    /// Marks a failure as not the command's own.
    pub(crate) fn around_command(self) -> Self {
        Self::AroundCommand(Box::new(self))
    }

    /// What kind of failure it is; `None` where no controller answers.
    pub(crate) fn class(&self) -> Option<ErrorClass> {
        match self {
            Self::Api { status, body } => Some(class_of(*status, &body.code)),
            Self::Unreachable { .. } => None,
            Self::Local { class, .. } => Some(*class),
            Self::AroundCommand(inner) => inner.class(),
        }
    }

    /// The exit code, as [`EXIT_CODES`] has it.
    pub(crate) fn exit_code(&self) -> u8 {
        if matches!(self, Self::AroundCommand(_)) {
            return EXIT_FORKD_FAILED;
        }
        match self.class() {
            Some(ErrorClass::Caller) => 2,
            Some(ErrorClass::NotFound) => 3,
            Some(ErrorClass::Conflict) => 4,
            Some(ErrorClass::Exhausted) => 5,
            Some(ErrorClass::HostUnfit) => 6,
            Some(ErrorClass::GuestFault) => 7,
            Some(ErrorClass::Corrupt) => 8,
            None => 9,
            Some(ErrorClass::Internal) => 10,
        }
    }

    /// What to do about it, where that can be said.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Local { hint: Some(hint), .. } => Some(hint.clone()),
            Self::AroundCommand(inner) => inner.hint(),
            Self::Unreachable { .. } => Some(
                "start one with `forkd serve`, or unset FORKD_URL so that forkd starts one itself".to_owned(),
            ),
            _ => self.class().and_then(general_hint).map(str::to_owned),
        }
    }
}

impl From<NameError> for CliError {
    fn from(e: NameError) -> Self {
        Self::usage(e.to_string())
    }
}

fn general_hint(class: ErrorClass) -> Option<&'static str> {
    match class {
        ErrorClass::NotFound => Some("see what there is: `forkd ls`, `forkd images`, `forkd image ls`"),
        ErrorClass::Exhausted => Some("make room: `forkd kill ID`, `forkd rmi TAG`, `forkd image rm NAME`"),
        ErrorClass::HostUnfit => Some("`forkd doctor` says what is missing and how to get it"),
        ErrorClass::GuestFault => Some("`forkd logs ID` shows what the guest printed"),
        _ => None,
    }
}

/// The class behind a status of the controller (its `error.rs` is the other half of this table).
fn class_of(status: u16, code: &str) -> ErrorClass {
    match status {
        501 => ErrorClass::HostUnfit,
        502 | 504 => ErrorClass::GuestFault,
        429 | 503 | 507 => ErrorClass::Exhausted,
        404 => ErrorClass::NotFound,
        409 => ErrorClass::Conflict,
        400..=499 => ErrorClass::Caller,
        _ if code.starts_with("corrupt") => ErrorClass::Corrupt,
        _ => ErrorClass::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(status: u16, code: &str) -> CliError {
        CliError::Api { status, body: ErrorBody { error: "x".into(), code: code.into(), failures: vec![] } }
    }

    #[test]
    fn every_status_has_the_documented_exit_code() {
        for (status, code, exit) in [
            (400, "bad_request", 2),
            (405, "method_not_allowed", 2),
            (413, "too_large", 2),
            (404, "not_found", 3),
            (409, "tag_taken", 4),
            (503, "exhausted", 5),
            (507, "disk_full", 5),
            (501, "host_unfit", 6),
            (502, "guest_fault", 7),
            (500, "corrupt", 8),
            (500, "internal", 10),
        ] {
            assert_eq!(api(status, code).exit_code(), exit, "{status} {code}");
            assert!(EXIT_CODES.contains(&format!("\n  {exit:<4} ")), "{exit} is documented");
        }
        let none = CliError::Unreachable { endpoint: "x".into(), source: "refused".into() };
        assert_eq!(none.exit_code(), 9);
        assert_eq!(api(404, "not_found").around_command().exit_code(), EXIT_FORKD_FAILED);
    }

    #[test]
    fn advice_of_the_place_wins_over_general_advice() {
        let e = CliError::local(ErrorClass::NotFound, "no").with_hint("look here");
        assert_eq!(e.hint().unwrap(), "look here");
        assert!(api(404, "x").hint().unwrap().contains("forkd ls"));
    }
}
