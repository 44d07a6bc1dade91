//! Names that people choose: parsed once at the edge, trusted afterwards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {given:?} is not valid: use {rule}")]
pub struct NameError {
    kind: &'static str,
    given: String,
    rule: String,
}

impl NameError {
    /// `rule` says what is valid, after "use".
    pub(crate) fn new(kind: &'static str, given: &str, rule: impl Into<String>) -> Self {
        Self { kind, given: given.chars().take(80).collect(), rule: rule.into() }
    }
}

fn check(kind: &'static str, given: &str, max: usize, dots: bool) -> Result<(), NameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || (dots && c == '.');
    let fine = !given.is_empty()
        && given.len() <= max
        && !given.starts_with(['-', '.'])
        && given.chars().all(allowed);
    if fine {
        return Ok(());
    }
    let rule = format!(
        "1 to {max} of the characters A-Z a-z 0-9 _ - (images and kernels also .), not starting with - or ."
    );
    Err(NameError::new(kind, given, rule))
}

fn pattern(max: usize, dots: bool) -> String {
    let more = if dots { "." } else { "" };
    format!("^[A-Za-z0-9_][A-Za-z0-9_{more}-]{{0,{}}}$", max - 1)
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, max $max:literal, dots $dots:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// What it looks like, as a regular expression.
            pub fn pattern() -> String {
                pattern($max, $dots)
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(given: &str) -> Result<Self, NameError> {
                check($kind, given, $max, $dots)?;
                Ok(Self(given.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(given: String) -> Result<Self, NameError> {
                given.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// The name of a snapshot.
    Tag, "tag", max 64, dots false
);
name_type!(
    /// The identity of a sandbox (`sb-…`), made by the engine.
    SandboxId, "sandbox id", max 64, dots false
);
name_type!(
    /// The name of a tenant.
    TenantName, "tenant", max 64, dots false
);
name_type!(
    /// The name of a workspace.
    WorkspaceName, "workspace name", max 64, dots false
);
name_type!(
    /// The name of a secret: a file of the guest.
    SecretName, "secret name", max 64, dots true
);
name_type!(
    /// What a token is called by, made by the controller.
    TokenId, "token id", max 32, dots false
);
name_type!(
    /// The name of an image.
    ImageName, "image name", max 64, dots true
);
name_type!(
    /// The name of a kernel: its release, such as `6.12.95+deb12-cloud-amd64` with `+` written `_`.
    KernelName, "kernel name", max 128, dots true
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_the_store_or_look_like_a_flag_is_refused() {
        let long = "x".repeat(300);
        for bad in ["", "..", ".", "a/../b", "%2e%2e", "a\0b", "-rf", "ünï", "a b", "a/b", &long] {
            assert!(bad.parse::<Tag>().is_err(), "{bad:?}");
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
        for good in ["a", "pynp", "code-interpreter-v1", "A_1", &"x".repeat(64)] {
            assert!(good.parse::<Tag>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn patterns_say_what_is_valid() {
        assert_eq!(Tag::pattern(), "^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$");
        assert_eq!(KernelName::pattern(), "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$");
    }

    #[test]
    fn deserialising_checks_too() {
        assert!(serde_json::from_str::<Tag>("\"../etc\"").is_err());
        assert_eq!(serde_json::from_str::<Tag>("\"py\"").unwrap().as_str(), "py");
    }
}
