//! What every verb is given: how to speak to the person, and how to reach a controller.

use crate::client::Client;
use crate::ensure;
use crate::error::CliError;
use crate::ui::Ui;

/// Where a controller listens when nobody says otherwise.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:8889";
/// Where it is looked for, and started, then.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8889";

/// The surroundings of a verb.
#[derive(Debug)]
pub(crate) struct Context {
    /// How to speak to the person.
    pub(crate) ui: Ui,
    url: Option<String>,
}

impl Context {
    /// `url` is what the person said, if anything.
    pub(crate) fn new(ui: Ui, url: Option<String>) -> Self {
        Self { ui, url: url.filter(|u| !u.is_empty()) }
    }

    /// A client of the controller, which is started where none was named and none runs.
    pub(crate) async fn client(&self) -> Result<Client, CliError> {
        match &self.url {
            Some(url) => Client::new(url),
            None => ensure::controller(&self.ui).await,
        }
    }
}
