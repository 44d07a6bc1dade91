//! Removing several things by name: one that cannot be removed does not keep the others.

use std::fmt::Display;

use forkd_protocol::error::ErrorClass;
use serde::Serialize;

use crate::client::Client;
use crate::error::CliError;
use crate::ui::Ui;

/// Removes each of `names` below `folder` of the API, in their order; `query` goes with each request.
pub(super) async fn remove<N: Display>(
    client: &Client,
    ui: &Ui,
    folder: &str,
    names: &[N],
    query: &str,
) -> Result<u8, CliError> {
    let mut removed = Vec::new();
    let mut left: Vec<&N> = names.iter().collect();
    loop {
        let (before, mut failed) = (left.len(), Vec::new());
        for name in std::mem::take(&mut left) {
            match client.delete(&format!("{folder}/{name}{query}")).await {
                Ok(()) => removed.push(name.to_string()),
                Err(e) => failed.push((name, e)),
            }
        }
        // One may have been needed by another that is gone now.
        let in_use = failed.iter().any(|(_, e)| e.class() == Some(ErrorClass::Conflict));
        if !in_use || failed.len() == before {
            return report(ui, &removed, failed.into_iter().map(|(_, e)| e).collect());
        }
        left = failed.into_iter().map(|(name, _)| name).collect();
    }
}

/// Prints what is gone and each failure; ends as the first failure says.
pub(super) fn report<N: Display + Serialize>(
    ui: &Ui,
    removed: &[N],
    failed: Vec<CliError>,
) -> Result<u8, CliError> {
    ui.show(&removed, |names| names.iter().map(|name| format!("{name}\n")).collect());
    let mut failed = failed.into_iter();
    let first = failed.next();
    for e in failed {
        ui.error(&e);
    }
    first.map_or(Ok(0), Err)
}
