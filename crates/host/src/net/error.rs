//! Why a sandbox has no network.

use std::io;

use forkd_protocol::error::ErrorClass;

/// Why a sandbox could not be given its network. Nothing of the attempt is left.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// This host cannot do it. Install or allow what is missing, or ask for `none`.
    #[error("this host cannot give sandboxes a network: {0}; a sandbox without one is `--net none`")]
    Unfit(String),
    /// All slots are taken. End sandboxes, or raise the limit.
    #[error("all {0} network slots are taken; end sandboxes, or ask for `--net none`")]
    Exhausted(u32),
    /// A policy names what stays closed. Take it out of the policy.
    #[error("no policy can open {0}: it is part of this host, of other sandboxes, or no place at all")]
    NeverOpen(String),
    /// The slot of a sandbox that runs is gone. End the sandbox.
    #[error("the network slot {0:?} is not there any more")]
    Gone(String),
    /// The kernel refused a step.
    #[error("{what} failed")]
    Kernel {
        /// What was being done, to what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// `nft` refused the rules.
    #[error("nft did not take the rules: {0}")]
    Rules(String),
}

impl NetError {
    pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Kernel { what, source }
    }

    /// A step that this kernel or these rights do not allow says that the host is unfit.
    pub(super) fn or_unfit(self) -> Self {
        let lacks = match &self {
            Self::Rules(_) => true,
            Self::Kernel { source, .. } => is_lack(source),
            Self::Unfit(_) | Self::Exhausted(_) | Self::NeverOpen(_) | Self::Gone(_) => false,
        };
        if lacks { Self::Unfit(forkd_protocol::error::chain(&self)) } else { self }
    }

    /// Whether that number is taken.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Kernel { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unfit(_) => ErrorClass::HostUnfit,
            Self::Exhausted(_) => ErrorClass::Exhausted,
            Self::NeverOpen(_) => ErrorClass::Caller,
            Self::Kernel { source, .. } if is_want(source) => ErrorClass::Exhausted,
            Self::Gone(_) | Self::Kernel { .. } | Self::Rules(_) => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unfit(_) => Some("no_network"),
            Self::Exhausted(_) => Some("no_network_slot"),
            Self::NeverOpen(_) => Some("bad_network_policy"),
            Self::Gone(_) | Self::Kernel { .. } | Self::Rules(_) => None,
        }
    }
}

/// Modules, rights, a writable /proc.
fn is_lack(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::EPERM
                | libc::EACCES
                | libc::ENOENT
                | libc::ENODEV
                | libc::ENXIO
                | libc::ENOSYS
                | libc::EROFS
                | libc::EOPNOTSUPP
                | libc::EPROTONOSUPPORT
                | libc::EAFNOSUPPORT
        )
    )
}

/// Descriptors, memory, namespaces.
fn is_want(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSPC | libc::ENOBUFS | libc::EUSERS)
    )
}
