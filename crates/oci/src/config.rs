//! The configuration of an image (OCI image specification, "Image Configuration"), as far as it concerns a
//! sandbox.

use std::collections::BTreeMap;

use forkd_protocol::guest::ImageSettings;
use serde::Deserialize;

use crate::{MAX_LAYERS, OciError};

#[derive(Debug, Deserialize)]
struct Document {
    architecture: String,
    os: String,
    #[serde(default)]
    config: Option<Running>,
    rootfs: Rootfs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Running {
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
    #[serde(default)]
    working_dir: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Rootfs {
    diff_ids: Vec<String>,
}

/// What a configuration says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) settings: ImageSettings,
    /// Digests of the layers as they are when unpacked, lowest first.
    pub(crate) diff_ids: Vec<String>,
}

/// Takes a configuration apart; refuses images for another platform.
pub(crate) fn parse(image: &str, json: &[u8]) -> Result<Config, OciError> {
    let document: Document = serde_json::from_slice(json)
        .map_err(|e| OciError::refused(image, "its configuration", format!("cannot be read: {e}")))?;
    if document.os != "linux" || document.architecture != "amd64" {
        let platforms = format!("{:.20}/{:.20}", document.os, document.architecture);
        return Err(OciError::Platform { image: image.to_owned(), platforms });
    }
    let diff_ids = document.rootfs.diff_ids;
    if diff_ids.is_empty() || diff_ids.len() > MAX_LAYERS {
        return Err(OciError::refused(
            image,
            "its configuration",
            format!("names {} layers", diff_ids.len()),
        ));
    }
    let running = document.config.unwrap_or_default();
    let given = |text: Option<String>| text.filter(|t| !t.is_empty());
    let settings = ImageSettings {
        user: given(running.user),
        workdir: given(running.working_dir),
        env: variables(running.env.unwrap_or_default()),
        entrypoint: running.entrypoint.unwrap_or_default(),
        cmd: running.cmd.unwrap_or_default(),
    };
    Ok(Config { settings, diff_ids })
}

/// `NAME=VALUE`; the last of one name counts, what has no name is left out.
fn variables(lines: Vec<String>) -> BTreeMap<String, String> {
    let pairs = lines.iter().filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| !name.is_empty()).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_a_sandbox_is_kept() {
        let json = br#"{"architecture":"amd64","os":"linux","created":null,"history":[{}],
            "config":{"User":"app:grp","Env":["A=1","B=x=y","A=2","=no","odd"],"Cmd":["-c"],
            "Entrypoint":["/bin/sh"],"WorkingDir":"/srv","Labels":null},
            "rootfs":{"type":"layers","diff_ids":["sha256:aa"]}}"#;
        let config = parse("x", json).unwrap();
        assert_eq!(config.diff_ids, ["sha256:aa"]);
        let settings = config.settings;
        assert_eq!(settings.user.as_deref(), Some("app:grp"));
        assert_eq!(settings.workdir.as_deref(), Some("/srv"));
        assert_eq!(
            settings.env.into_iter().collect::<Vec<_>>(),
            [("A".to_owned(), "2".to_owned()), ("B".to_owned(), "x=y".to_owned())]
        );
        assert_eq!((settings.entrypoint, settings.cmd), (vec!["/bin/sh".to_owned()], vec!["-c".to_owned()]));
    }

    #[test]
    fn nulls_and_absent_parts_mean_nothing_said() {
        let json = br#"{"architecture":"amd64","os":"linux","config":{"User":"","Env":null,"Cmd":null},
            "rootfs":{"diff_ids":["sha256:aa"]}}"#;
        assert_eq!(parse("x", json).unwrap().settings, ImageSettings::default());
    }

    #[test]
    fn other_platforms_and_nonsense_are_refused() {
        let with = |arch: &str, ids: &str| {
            format!(r#"{{"architecture":"{arch}","os":"linux","rootfs":{{"diff_ids":[{ids}]}}}}"#)
        };
        let arm = parse("x", with("arm64", "\"sha256:aa\"").as_bytes());
        assert!(matches!(arm, Err(OciError::Platform { .. })), "{arm:?}");
        let many = ["\"sha256:aa\""; MAX_LAYERS + 1].join(",");
        for json in [with("amd64", ""), with("amd64", &many), "{}".to_owned(), "[".repeat(10_000)] {
            let refused = parse("x", json.as_bytes());
            assert!(matches!(refused, Err(OciError::Refused { .. })), "{refused:?}");
        }
    }
}
