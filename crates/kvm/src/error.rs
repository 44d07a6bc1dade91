//! What can go wrong with KVM.

/// A KVM operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// `/dev/kvm` is missing or may not be opened.
    #[error("/dev/kvm cannot be opened; is this computer able to virtualize, and may this user?")]
    Open(#[source] kvm_ioctls::Error),
    /// An ioctl failed.
    #[error("KVM refused to {what}")]
    Ioctl {
        /// What was asked, as a verb phrase.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// A fixed-size list of KVM would not hold the entries.
    #[error("a list for KVM is too long")]
    ListTooLong,
    /// The signal that interrupts vCPUs could not be set up.
    #[error("the signal that interrupts vCPUs could not be set up")]
    Signal(#[source] vmm_sys_util::errno::Error),
}

/// Saved state that this host cannot take on. Refused before a vCPU runs.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The guest was shown features or a vendor that this processor lacks.
    #[error("this host's processor cannot give the guest what it was shown: {0}")]
    CpuUnfit(String),
    /// The time stamp counter runs at another speed and cannot be scaled.
    #[error(
        "the guest's time stamp counter ran at {saved} kHz; this host's runs at {host} kHz and cannot be scaled"
    )]
    TscUnfit {
        /// Frequency the guest was shown.
        saved: u32,
        /// Frequency here.
        host: u32,
    },
    /// A model-specific register could not be set.
    #[error("model-specific register {index:#x} cannot be set on this host")]
    Msr {
        /// Its number.
        index: u32,
    },
    /// KVM refused.
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

/// Names the ioctl that failed.
pub(crate) trait Asked<T> {
    fn asked(self, what: &'static str) -> Result<T, KvmError>;
}

impl<T> Asked<T> for Result<T, kvm_ioctls::Error> {
    fn asked(self, what: &'static str) -> Result<T, KvmError> {
        self.map_err(|source| KvmError::Ioctl { what, source })
    }
}
