//! What can go wrong between the host and an agent.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use forkd_protocol::error::ErrorClass;
use forkd_protocol::guest::{GUEST_VERSION, GuestRefusal};
use http::StatusCode;

use super::BoxError;

/// Most characters of a refusal that are repeated to people.
const MAX_MESSAGE: usize = 16 * 1024;

/// Why a guest did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The monitor's socket does not take connections: the monitor is gone or stands still.
    #[error("the sandbox takes no connections")]
    Connect(#[source] io::Error),
    /// Nothing in the guest listens for the agent's port.
    #[error("the agent of the sandbox accepts no connection")]
    NotAccepted,
    /// The handshake was answered with something else.
    #[error("the sandbox answered the vsock handshake with nonsense")]
    Greeting,
    /// The agent broke the connection or does not speak HTTP.
    #[error("the agent of the sandbox does not answer properly")]
    Http(#[source] hyper::Error),
    /// The answer stopped before its end.
    #[error("the answer of the sandbox broke off")]
    BrokeOff(#[source] BoxError),
    /// The answer is larger than this call carries; stream it instead.
    #[error("the answer of the sandbox is larger than {max} bytes")]
    TooLarge {
        /// The bound.
        max: usize,
    },
    /// The answer is not what the protocol says.
    #[error("the answer of the sandbox could not be understood")]
    Malformed(#[source] serde_json::Error),
    /// A path or header cannot be sent. Correct the request.
    #[error("the request cannot be passed on")]
    BadRequest(#[source] http::Error),
    /// The call took longer than it was given, and the grace on top of it.
    #[error("the sandbox did not answer {what} within {} s", .after.as_secs_f64())]
    Late {
        /// What was asked.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
        /// What stood in the way last, where something did.
        source: Option<Box<GuestError>>,
    },
    /// The agent speaks a version that is not spoken here. Make the snapshot again with this forkd, or use the
    /// forkd that made it.
    #[error(
        "the agent of the guest speaks version {found} of the protocol, this forkd {} to {}: make the snapshot \
         again with this forkd, or use the forkd that made it", .known.start(), .known.end()
    )]
    Version {
        /// What it speaks.
        found: u32,
        /// What is spoken here.
        known: RangeInclusive<u32>,
    },
    /// The agent is older than what was asked of it.
    #[error(
        "the agent of this sandbox is older than that: make its snapshot again with `forkd snapshot refresh TAG`, and fork \
         from it"
    )]
    Older,
    /// The agent said no.
    #[error("{}", .refusal.message)]
    Refused {
        /// HTTP status of the answer.
        status: StatusCode,
        /// What it said.
        refusal: GuestRefusal,
    },
}

impl GuestError {
    /// Refuses an agent whose version is not spoken here.
    pub(crate) fn check_version(found: u32) -> Result<(), Self> {
        let known = 1..=GUEST_VERSION;
        if known.contains(&found) { Ok(()) } else { Err(Self::Version { found, known }) }
    }

    pub(crate) fn late(what: &'static str, after: Duration) -> Self {
        Self::Late { what, after, source: None }
    }

    /// Whether the connection broke: the machine behind it may be ending.
    pub(crate) fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::NotAccepted | Self::Http(_) | Self::BrokeOff(_))
    }

    /// From a refusal's body, which may be anything.
    pub(crate) fn refused(status: StatusCode, body: &[u8]) -> Self {
        let refusal = serde_json::from_slice(body).ok().filter(|r: &GuestRefusal| is_code(&r.code));
        let mut refusal = refusal.unwrap_or_else(|| GuestRefusal {
            code: "guest_refused".to_owned(),
            message: format!("the agent of the sandbox answered {status}"),
        });
        if let Some((end, _)) = refusal.message.char_indices().nth(MAX_MESSAGE) {
            refusal.message.truncate(end);
        }
        Self::Refused { status, refusal }
    }

    /// Where an agent does not know what it is asked, it is older than that.
    pub(crate) fn or_older(self) -> Self {
        match self {
            Self::Refused { refusal, .. }
                if matches!(refusal.code.as_str(), "unknown_verb" | "unimplemented") =>
            {
                Self::Older
            }
            other => other,
        }
    }

    /// Who has to act. What the agent calls the caller's fault is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::BadRequest(_) => ErrorClass::Caller,
            Self::Version { .. } | Self::Older => ErrorClass::HostUnfit,
            Self::Refused { status, .. } => match *status {
                StatusCode::NOT_FOUND => ErrorClass::NotFound,
                StatusCode::CONFLICT => ErrorClass::Conflict,
                StatusCode::TOO_MANY_REQUESTS => ErrorClass::Exhausted,
                s if s.is_client_error() => ErrorClass::Caller,
                _ => ErrorClass::GuestFault,
            },
            _ => ErrorClass::GuestFault,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> &str {
        match self {
            Self::Connect(_) | Self::NotAccepted => "guest_unreachable",
            Self::Late { .. } => "guest_timeout",
            Self::TooLarge { .. } => "answer_too_large",
            Self::Refused { refusal, .. } => &refusal.code,
            Self::BadRequest(_) => "bad_request",
            Self::Version { .. } | Self::Older => "version_mismatch",
            Self::Greeting | Self::Http(_) | Self::BrokeOff(_) | Self::Malformed(_) => "guest_fault",
        }
    }
}

/// Codes go to machines: only what looks like one is passed on.
fn is_code(code: &str) -> bool {
    (1..=64).contains(&code.len())
        && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_passed_on_and_nonsense_is_not() {
        let body = br#"{"code":"no_python","message":"there is no python3"}"#;
        let e = GuestError::refused(StatusCode::BAD_REQUEST, body);
        assert_eq!(
            (e.code(), e.class(), e.to_string().as_str()),
            ("no_python", ErrorClass::Caller, "there is no python3")
        );
        for body in [&b"<html>"[..], br#"{"code":"<b>","message":"x"}"#, br#"{"code":"","message":"x"}"#] {
            let e = GuestError::refused(StatusCode::INTERNAL_SERVER_ERROR, body);
            assert_eq!((e.code(), e.class()), ("guest_refused", ErrorClass::GuestFault));
        }
    }

    #[test]
    fn an_agent_of_another_version_is_refused() {
        GuestError::check_version(GUEST_VERSION).unwrap();
        for other in [0, GUEST_VERSION + 1] {
            let e = GuestError::check_version(other).unwrap_err();
            assert_eq!((e.code(), e.class()), ("version_mismatch", ErrorClass::HostUnfit));
            assert!(e.to_string().contains("make the snapshot again"), "{e}");
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let body =
            serde_json::to_vec(&GuestRefusal { code: "x".into(), message: "ü".repeat(100_000) }).unwrap();
        let text = GuestError::refused(StatusCode::CONFLICT, &body).to_string();
        assert_eq!(text.chars().count(), MAX_MESSAGE);
    }
}
