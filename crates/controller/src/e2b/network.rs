//! What may leave a sandbox, in the words of clients: what is denied, and what is allowed all the same.

use forkd_protocol::rest::{Destination, Egress, NetworkPolicy};
use serde_json::Value;

use super::error::E2bError;
use super::shapes::NetworkConfig;

/// All there is, as clients name it.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The policy that is asked for; none where nothing is. What is asked for and cannot be had is refused.
pub(super) fn policy(
    network: Option<&NetworkConfig>,
    internet: Option<bool>,
) -> Result<Option<NetworkPolicy>, E2bError> {
    let nothing = NetworkConfig::default();
    let network = network.unwrap_or(&nothing);
    if let Some((name, _)) = network.more.iter().find(|(_, value)| !is_nothing(value)) {
        return Err(E2bError::not_served(&format!("network.{name}")));
    }
    let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let (allowed, denied) = (list(&network.allow_out), list(&network.deny_out));
    let is_all = |entry: &String| ALL.contains(&entry.as_str());
    let denies_all = internet == Some(false) || denied.iter().any(is_all);
    if !denies_all && !denied.is_empty() {
        return Err(E2bError::not_served("network.denyOut of some addresses and not of all (0.0.0.0/0)"));
    }
    let egress = match (denies_all, allowed.is_empty()) {
        (true, true) => Egress::Deny,
        (true, false) if allowed.iter().any(is_all) => Egress::Allow,
        (true, false) => Egress::Only(allowed.into_iter().map(destination).collect::<Result<_, _>>()?),
        // Some clients say by themselves that nothing is to be denied.
        (false, true) => return Ok(None),
        // What is not denied is open.
        (false, false) => Egress::Allow,
    };
    Ok(Some(egress.into()))
}

fn destination(entry: String) -> Result<Destination, E2bError> {
    Destination::try_from(Value::from(entry)).map_err(E2bError::bad_request)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(network: Value, internet: Option<bool>) -> Result<Value, u16> {
        let network: NetworkConfig = serde_json::from_value(network).unwrap();
        let policy = policy(Some(&network), internet).map_err(|e| e.code)?;
        Ok(serde_json::to_value(policy).unwrap())
    }

    #[test]
    fn what_is_allowed_goes_before_what_is_denied() {
        assert_eq!(of(json!({}), None), Ok(Value::Null));
        assert_eq!(of(json!({"allowPublicTraffic": false, "dnsServers": []}), None), Ok(Value::Null));
        assert_eq!(of(json!({}), Some(false)), Ok(json!("deny")));
        assert_eq!(of(json!({}), Some(true)), Ok(Value::Null));
        assert_eq!(of(json!({"allowOut": ["203.0.113.1"]}), None), Ok(json!("allow")));
        assert_eq!(of(json!({"denyOut": ["0.0.0.0/0"]}), None), Ok(json!("deny")));
        let some = json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["203.0.113.0/24", "*.example.com"]});
        assert_eq!(of(some, None), Ok(json!(["203.0.113.0/24", "*.example.com"])));
        assert_eq!(of(json!({"allowOut": ["203.0.113.1"]}), Some(false)), Ok(json!(["203.0.113.1"])));
        assert_eq!(
            of(json!({"allowOut": ["0.0.0.0/0"], "denyOut": ["0.0.0.0/0"]}), None),
            Ok(json!("allow"))
        );
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for network in [
            json!({"denyOut": ["203.0.113.1"]}),
            json!({"egressProxy": {"address": "203.0.113.1:80"}}),
            json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["not a destination"]}),
        ] {
            assert_eq!(of(network.clone(), None), Err(400), "{network}");
        }
    }
}
