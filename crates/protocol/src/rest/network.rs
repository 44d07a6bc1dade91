//! What may leave a sandbox.
//!
//! In JSON a policy is a word (`"allow"`, `"deny"`, `"none"`), a list of destinations, or an object
//! `{"egress": word or list, "upload_kbit": …, "download_kbit": …}`. A destination is a text (`10.0.0.0/8`,
//! `example.com`, `*.example.com:443`, `[2001:db8::/32]:8000-8010`) or an object
//! `{"to": text, "ports": [443, "8000-8010"], "protocol": "tcp" or "udp"}`.

mod destination;
mod schema;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use self::destination::{Destination, DomainPattern, MAX_PORT_RANGES, Ports, Target, Transport};

/// Most destinations of one policy.
pub const MAX_DESTINATIONS: usize = 256;
/// Slowest and fastest bandwidth, kbit/s.
pub const KBIT: (u64, u64) = (64, 100_000_000);

/// What may leave a sandbox, and how fast.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct NetworkPolicy {
    /// Where to.
    pub egress: Egress,
    /// Most that it sends, kbit/s.
    pub upload_kbit: Option<u64>,
    /// Most that it is sent, kbit/s.
    pub download_kbit: Option<u64>,
}

/// Where packets of a sandbox may go. Other sandboxes and the host itself are in none of these.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Egress {
    /// Every public address.
    #[default]
    Allow,
    /// Nowhere, and no name resolves.
    Deny,
    /// The network device passes nothing at all.
    None,
    /// Only these. An entry reaches private, link-local and metadata addresses only where it lies among them.
    Only(Vec<Destination>),
}

/// What is wrong with a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It has another form than the documented ones.
    #[error(
        "a network policy is allow, deny, none, a list of destinations, or an object with egress; this is {0}"
    )]
    Form(String),
    /// A destination is none.
    #[error("{given:?} is no destination: {reason}")]
    Destination {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The list is too long.
    #[error("a network policy lists at most {MAX_DESTINATIONS} destinations, not {0}")]
    TooMany(usize),
    /// A bandwidth is out of range.
    #[error("{what} must be {} to {}, not {given}", KBIT.0, KBIT.1)]
    Rate {
        /// Which.
        what: &'static str,
        /// What was given.
        given: String,
    },
    /// A field that a policy does not have.
    #[error("a network policy has no field {0:?}")]
    Field(String),
}

impl NetworkPolicy {
    /// Whether the network device passes anything.
    pub fn has_traffic(&self) -> bool {
        self.egress != Egress::None
    }
}

impl From<Egress> for NetworkPolicy {
    fn from(egress: Egress) -> Self {
        Self { egress, upload_kbit: None, download_kbit: None }
    }
}

impl TryFrom<Value> for NetworkPolicy {
    type Error = PolicyError;

    fn try_from(given: Value) -> Result<Self, PolicyError> {
        let Value::Object(mut fields) = given else { return Ok(egress(given)?.into()) };
        let policy = Self {
            egress: fields.remove("egress").map_or(Ok(Egress::default()), egress)?,
            upload_kbit: rate("upload_kbit", &mut fields)?,
            download_kbit: rate("download_kbit", &mut fields)?,
        };
        fields.into_iter().next().map_or(Ok(policy), |(name, _)| Err(PolicyError::Field(name)))
    }
}

fn egress(given: Value) -> Result<Egress, PolicyError> {
    match given {
        Value::String(word) => match word.as_str() {
            "allow" => Ok(Egress::Allow),
            "deny" => Ok(Egress::Deny),
            "none" => Ok(Egress::None),
            _ => Err(PolicyError::Form(format!("{word:?}"))),
        },
        Value::Array(list) if list.len() > MAX_DESTINATIONS => Err(PolicyError::TooMany(list.len())),
        Value::Array(list) => {
            list.into_iter().map(Destination::try_from).collect::<Result<_, _>>().map(Egress::Only)
        }
        other => Err(PolicyError::Form(other.to_string())),
    }
}

fn rate(what: &'static str, fields: &mut Map<String, Value>) -> Result<Option<u64>, PolicyError> {
    let Some(given) = fields.remove(what).filter(|given| !given.is_null()) else { return Ok(None) };
    match given.as_u64() {
        Some(kbit) if (KBIT.0..=KBIT.1).contains(&kbit) => Ok(Some(kbit)),
        _ => Err(PolicyError::Rate { what, given: given.to_string() }),
    }
}

impl From<Egress> for Value {
    fn from(egress: Egress) -> Self {
        match egress {
            Egress::Allow => "allow".into(),
            Egress::Deny => "deny".into(),
            Egress::None => "none".into(),
            Egress::Only(list) => list.into_iter().map(Self::from).collect(),
        }
    }
}

impl From<NetworkPolicy> for Value {
    fn from(policy: NetworkPolicy) -> Self {
        let NetworkPolicy { egress, upload_kbit, download_kbit } = policy;
        if upload_kbit.is_none() && download_kbit.is_none() {
            return egress.into();
        }
        let mut fields = Map::from_iter([("egress".to_owned(), egress.into())]);
        for (name, kbit) in [("upload_kbit", upload_kbit), ("download_kbit", download_kbit)] {
            fields.extend(kbit.map(|kbit| (name.to_owned(), json!(kbit))));
        }
        Self::Object(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: Value) -> Result<NetworkPolicy, String> {
        serde_json::from_value(given).map_err(|e| e.to_string())
    }

    #[test]
    fn every_form_is_read_and_comes_back_as_it_was() {
        for form in [
            json!("allow"),
            json!("deny"),
            json!("none"),
            json!([]),
            json!(["10.0.0.0/8", "example.com", {"to": "*.example.com", "ports": [443, "8000-8010"], "protocol": "tcp"}]),
            json!({"egress": "allow", "upload_kbit": 1000}),
            json!({"egress": ["2001:db8::/32"], "upload_kbit": 64, "download_kbit": 100_000_000}),
        ] {
            let policy = read(form.clone()).unwrap();
            assert_eq!(serde_json::to_value(&policy).unwrap(), form);
        }
        assert_eq!(read(json!({"download_kbit": null})).unwrap(), NetworkPolicy::default());
    }

    #[test]
    fn what_is_none_is_refused_with_a_reason() {
        let many: Vec<_> = (0..257).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        for (given, says) in [
            (json!("open"), "\"open\""),
            (json!(7), "is allow, deny, none"),
            (json!({"egress": "allow", "ingress": "allow"}), "no field \"ingress\""),
            (json!({"upload_kbit": 63}), "64 to 100000000"),
            (json!({"upload_kbit": "fast"}), "64 to 100000000"),
            (json!(["no spaces"]), "no destination"),
            (json!(many), "at most 256"),
        ] {
            let refused = read(given).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
