//! `forkd net`, and policies as verbs take them.

use std::fs;

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{NetworkPolicy, SandboxInfo};
use serde_json::Value;

use crate::context::Context;
use crate::error::CliError;

/// Longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Change what may leave a sandbox, from one instant to the next.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd net sb-6a2f-0001 deny\n  forkd net sb-6a2f-0001 allowed.txt\n\n\
                  A file is JSON as the API takes it, or has one destination a line, such as 203.0.113.0/24 or\n\
                  *.example.com:443; docs/network.md tells more.")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// What may leave it: allow, deny, none, or a file of destinations
    #[arg(value_name = "allow|deny|none|FILE", value_parser = policy)]
    policy: NetworkPolicy,
}

/// The policy of what is made.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct NetArgs {
    /// What may leave it: allow, deny, none (no network at all), or a file of destinations
    #[arg(long = "net", value_name = "none|allow|deny|FILE", value_parser = policy)]
    pub(crate) policy: Option<NetworkPolicy>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let info: SandboxInfo = client.put(&format!("/v1/sandboxes/{}/network", args.id), &args.policy).await?;
    context.ui.show(&info, |info| format!("{}: {}\n", info.id, shown(info.network.as_ref())));
    Ok(0)
}

/// A policy in one word or a few.
pub(crate) fn shown(policy: Option<&NetworkPolicy>) -> String {
    let Some(policy) = policy else { return "none".to_owned() };
    match serde_json::to_value(policy).unwrap_or_default() {
        Value::String(word) => word,
        other => other.to_string(),
    }
}

fn policy(given: &str) -> Result<NetworkPolicy, String> {
    let value = match given {
        "allow" | "deny" | "none" => Value::String(given.to_owned()),
        file => read(file)?,
    };
    NetworkPolicy::try_from(value).map_err(|e| e.to_string())
}

fn read(file: &str) -> Result<Value, String> {
    let failed =
        |e: std::io::Error| format!("{file} is none of allow, deny, none, and no file to be read: {e}");
    if fs::metadata(file).map_err(failed)?.len() > MAX_FILE {
        return Err(format!("{file} is longer than {MAX_FILE} bytes"));
    }
    let text = fs::read_to_string(file).map_err(failed)?;
    if text.trim_start().starts_with(['[', '{', '"']) {
        return serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"));
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(Value::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(content: &str) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        policy(file.path().to_str().unwrap()).map(|policy| shown(Some(&policy)))
    }

    #[test]
    fn words_lists_and_json_are_policies() {
        assert_eq!(shown(Some(&policy("deny").unwrap())), "deny");
        let lines = of_file("# mine\n203.0.113.0/24\n\n*.example.com:443 # web\n").unwrap();
        assert_eq!(lines, r#"["203.0.113.0/24",{"ports":[443],"to":"*.example.com"}]"#);
        assert_eq!(
            of_file(r#"{"egress": "allow", "upload_kbit": 1000}"#).unwrap(),
            r#"{"egress":"allow","upload_kbit":1000}"#
        );
        assert_eq!(of_file("").unwrap(), "[]", "nothing is listed");
        assert!(of_file("not a destination").is_err());
        assert!(policy("/there/is/no/such/file").unwrap_err().contains("none of allow"));
    }
}
