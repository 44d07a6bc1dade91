//! A run that somebody watches: what it prints and shows as it does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// What a run does before its end.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// A value in its forms, by name.
    Display(Map<String, Value>),
}

/// How a run is watched, and what is only for it.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Who does not read them holds the code back.
    pub(crate) events: mpsc::Sender<Event>,
    /// Variables of this run.
    pub(crate) env: BTreeMap<String, String>,
}
