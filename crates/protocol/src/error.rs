//! What kind of failure an error is, for those who must react to it without knowing it.

use std::error::Error;

use serde::{Deserialize, Serialize};

/// The kinds of failure. The controller alone turns one into an HTTP status, the command line alone into an
/// exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The request is wrong; asking again changes nothing.
    Caller,
    /// What it names does not exist.
    NotFound,
    /// It exists already, is in use, or is not in a state for this.
    Conflict,
    /// Memory, disk, slots or a cap; works again once there is room.
    Exhausted,
    /// This host cannot do it: no KVM, another CPU, a missing tool.
    HostUnfit,
    /// The guest failed, stalled or answered nonsense.
    GuestFault,
    /// Stored data is damaged.
    Corrupt,
    /// Everything else: a fault of forkd or its surroundings.
    Internal,
}

impl ErrorClass {
    /// As figures and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Exhausted => "exhausted",
            Self::HostUnfit => "host_unfit",
            Self::GuestFault => "guest_fault",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// An error and its causes in one line; a cause that the text before it ends with already is not repeated.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let said = e.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Step(&'static str, Option<Box<Step>>);

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Step {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|step| step as &(dyn Error + 'static))
        }
    }

    #[test]
    fn causes_are_told_in_order_and_once() {
        let last = Step("no space", None);
        let middle = Step("could not write: no space", Some(Box::new(last)));
        assert_eq!(chain(&Step("not made", Some(Box::new(middle)))), "not made: could not write: no space");
        assert_eq!(chain(&Step("alone", None)), "alone");
    }
}
