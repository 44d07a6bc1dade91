//! Secrets of sandboxes: values in this process's memory and in the guest's, names in the registry, nothing elsewhere.
//!
//! The agent empties their files whenever the workload stands still for a snapshot, and is given them again with the
//! word that lets it run on (`sandbox/registry.rs`) or that tells a child who it is (`fork/child.rs`). So a controller
//! that was started again, which holds no values, can let a sandbox that was paused meanwhile run on without its secrets
//! only, and refuses to branch one that would lose them.
//!
//! What a process has read from its secret is in the process's memory, and so in a snapshot. That is why such a
//! snapshot is made on request only, and says so for ever.

mod error;
mod give;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_protocol::guest::{GuestSecret, SECRETS_VERSION};
use forkd_protocol::names::{SandboxId, SecretName};
use forkd_protocol::rest::{
    CreateSandboxes, MAX_SECRET_BYTES, MAX_SECRETS, SecretValue, SecretValues, ShownSecret,
};
use forkd_store::Manifest;
use serde::{Deserialize, Serialize};

pub use error::SecretError;
pub(crate) use give::carried;

/// The secrets of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secrets {
    known: BTreeMap<String, Secret>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Secret {
    /// Sandbox or snapshot that it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// The guest was given it as a file.
    given: bool,
    /// Never leaves this process but into the guest.
    #[serde(skip)]
    value: Option<SecretValue>,
}

impl Secrets {
    /// Of a child of a snapshot that was given these.
    pub(crate) fn of(asked: &CreateSandboxes, manifest: &Manifest) -> Self {
        let from = Some(asked.snapshot_tag.clone());
        let traces = manifest.secrets.iter().map(|name| (name.clone(), from.clone()));
        let mut all =
            Self { known: traces.map(|(name, from)| (name, Secret { from, ..Secret::default() })).collect() };
        all.add(asked.secrets.clone());
        all
    }

    /// Those that a sandbox's children have where they are to have them, by the source's own values.
    pub(crate) fn inherit(&mut self, source: &SandboxId, of_source: Self) {
        for (name, secret) in of_source.known {
            let of_own = self.known.get(&name).is_some_and(|own| own.value.is_some());
            if !of_own {
                self.known.insert(name, Secret { from: Some(source.to_string()), ..secret });
            }
        }
    }

    /// Given to the sandbox itself, whatever had these names before.
    pub(crate) fn add(&mut self, values: SecretValues) {
        let own = |value| Secret { from: None, given: true, value: Some(value) };
        self.known.extend(values.into_iter().map(|(name, value)| (name, own(value))));
    }

    /// Names of all that its processes may have read.
    pub(crate) fn names(&self) -> Vec<String> {
        self.known.keys().cloned().collect()
    }

    /// As the guest is given them.
    pub(crate) fn for_guest(&self) -> Vec<GuestSecret> {
        let value = |(name, secret): (&String, &Secret)| {
            let value_base64 = match secret.value.as_ref()? {
                SecretValue::Text(text) => STANDARD.encode(text),
                SecretValue::Bytes { base64 } => base64.clone(),
            };
            Some(GuestSecret { name: name.clone(), value_base64 })
        };
        self.known.iter().filter_map(value).collect()
    }

    pub(crate) fn shown(&self) -> Vec<ShownSecret> {
        let shown = |(name, secret): (&String, &Secret)| ShownSecret {
            name: name.clone(),
            inherited_from: secret.from.clone(),
            held: secret.value.is_some(),
        };
        self.known.iter().map(shown).collect()
    }

    /// An error where a snapshot of the sandbox is not to be made.
    pub(crate) fn check_branch(&self, id: &SandboxId, with_secrets: bool) -> Result<(), SecretError> {
        if self.known.is_empty() {
            return Ok(());
        }
        if !with_secrets {
            return Err(SecretError::Holder { id: id.to_string(), names: self.names() });
        }
        let lost = |(name, secret): (&String, &Secret)| {
            (secret.given && secret.value.is_none()).then(|| name.clone())
        };
        let names: Vec<_> = self.known.iter().filter_map(lost).collect();
        if names.is_empty() { Ok(()) } else { Err(SecretError::NotHeld { id: id.to_string(), names }) }
    }

    /// An error where the agent of a snapshot keeps no secrets.
    pub(crate) fn check_agent(&self, manifest: &Manifest, tag: &str) -> Result<(), SecretError> {
        let found = manifest.agent_protocol;
        let gives = self.known.values().any(|secret| secret.value.is_some());
        if gives && found < SECRETS_VERSION {
            return Err(SecretError::OldAgent { tag: tag.to_owned(), found });
        }
        Ok(())
    }
}

/// Refuses what cannot be kept.
pub(crate) fn check(secrets: &SecretValues) -> Result<(), SecretError> {
    if secrets.len() > MAX_SECRETS {
        return Err(SecretError::TooMany(secrets.len()));
    }
    for (name, value) in secrets {
        name.parse::<SecretName>()?;
        let bytes = match value {
            SecretValue::Text(text) => Some(text.len()),
            SecretValue::Bytes { base64 } => STANDARD.decode(base64).ok().map(|bytes| bytes.len()),
        };
        match bytes {
            None => return Err(SecretError::NoBase64(name.clone())),
            Some(0) => return Err(SecretError::Empty(name.clone())),
            Some(1..=MAX_SECRET_BYTES) => {}
            Some(bytes) => return Err(SecretError::TooLong { name: name.clone(), bytes }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> SecretValue {
        SecretValue::Text(value.to_owned())
    }

    fn given() -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add([("KEY".to_owned(), text("v4lue"))].into());
        secrets
    }

    #[test]
    fn neither_registry_nor_logs_have_a_value() {
        let secrets = given();
        let kept = serde_json::to_string(&secrets).unwrap();
        assert!(kept.contains("KEY") && !kept.contains("v4lue"), "{kept}");
        for printed in [format!("{secrets:?}"), format!("{:?}", secrets.for_guest())] {
            assert!(printed.contains("KEY") && !printed.contains("v4lue"), "{printed}");
            assert!(!printed.contains(&STANDARD.encode("v4lue")), "{printed}");
        }
    }

    #[test]
    fn a_holder_is_branched_on_purpose_and_only_while_it_gets_its_secrets_back() {
        let id = "sb-1".parse().unwrap();
        assert!(Secrets::default().check_branch(&id, false).is_ok());
        let refused = given().check_branch(&id, false).unwrap_err();
        assert!(refused.to_string().contains("KEY") && refused.to_string().contains("--with-secrets"));
        assert!(given().check_branch(&id, true).is_ok());
        let kept = serde_json::to_string(&given()).unwrap();
        let mut after_restart: Secrets = serde_json::from_str(&kept).unwrap();
        assert!(matches!(after_restart.check_branch(&id, true), Err(SecretError::NotHeld { .. })));
        assert!(after_restart.for_guest().is_empty() && !after_restart.shown()[0].held);
        after_restart.add([("KEY".to_owned(), text("again"))].into());
        assert!(after_restart.check_branch(&id, true).is_ok());
    }

    #[test]
    fn children_say_where_a_secret_came_from_and_their_own_one_wins() {
        let source = "sb-1".parse().unwrap();
        let mut child = Secrets::default();
        child.inherit(&source, given());
        assert_eq!(child.shown()[0].inherited_from.as_deref(), Some("sb-1"));
        assert_eq!(child.for_guest(), given().for_guest());
        let mut other = Secrets::default();
        other.add([("KEY".to_owned(), text("own"))].into());
        other.inherit(&source, given());
        assert_eq!((other.shown()[0].inherited_from.clone(), other.for_guest().len()), (None, 1));
        assert_eq!(other.for_guest()[0].value_base64, STANDARD.encode("own"));
    }

    #[test]
    fn what_is_no_name_no_value_or_too_much_is_refused() {
        let one = |name: &str, value: SecretValue| check(&[(name.to_owned(), value)].into());
        assert!(one("KEY", text(&"x".repeat(MAX_SECRET_BYTES))).is_ok());
        assert!(one("KEY", text(&"x".repeat(MAX_SECRET_BYTES + 1))).is_err());
        assert!(one("KEY", SecretValue::Bytes { base64: "AP8=".into() }).is_ok());
        assert!(one("KEY", SecretValue::Bytes { base64: "%".into() }).is_err());
        for bad in ["", "..", "a/b", ".hidden", "a b"] {
            assert!(one(bad, text("x")).is_err(), "{bad:?}");
        }
        assert!(one("KEY", text("")).is_err());
        let many = (0..=MAX_SECRETS).map(|n| (format!("K{n}"), text("x"))).collect();
        assert!(check(&many).is_err());
    }
}
