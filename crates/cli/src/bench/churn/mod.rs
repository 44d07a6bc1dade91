//! The leak meter: forks and kills again and again, and looks at what is left.
//!
//! Counted before and after, each time once nothing moves any more: the pool of waiting monitors is full again, what was
//! killed is gone.

mod report;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forkd_host::process::Process;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{HostCounts, SandboxInfo};

pub(crate) use report::Report;

use super::Stop;
use crate::client::Client;
use crate::commands::fork;
use crate::context::Context;
use crate::error::CliError;
use crate::machine::shell_line;
use crate::upload::blocking;

/// How long the host may take to come to rest.
const REST_WITHIN: Duration = Duration::from_secs(180);
/// How long another controller may take to answer.
const BACK_WITHIN: Duration = Duration::from_secs(180);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Churn<'a> {
    /// Snapshot.
    pub(crate) tag: &'a str,
    /// How often children are forked and killed.
    pub(crate) cycles: u32,
    /// How many each time.
    pub(crate) n: u32,
    /// In how many of the cycles the controller is killed while the children run.
    pub(crate) kills: u32,
}

impl Churn<'_> {
    /// Does it. What was measured until it is asked to stop is reported.
    pub(crate) async fn run(&self, context: &Context, stop: &Stop) -> Result<Report, CliError> {
        let mut client = context.client().await?;
        // The first opens what stays open, in the controller and in the store.
        self.cycle(&client, None).await?;
        if self.kills > 0 {
            client = self.cycle_with_kill(context, &client).await?;
        }
        self.cycle(&client, None).await?;
        let before = at_rest(&client, None).await?;
        let began = Instant::now();
        let (mut done, mut killed) = (0, 0);
        while done < self.cycles && stop.code().is_none() {
            done += 1;
            // As many as are due by now.
            if u64::from(done) * u64::from(self.kills) / u64::from(self.cycles) > u64::from(killed) {
                killed += 1;
                client = self.cycle_with_kill(context, &client).await?;
            } else {
                self.cycle(&client, None).await?;
            }
        }
        if killed > 0 {
            self.cycle(&client, None).await?;
        }
        let took = began.elapsed();
        let after = at_rest(&client, Some(&before)).await?;
        Ok(Report::new(*self, done, killed, took, &before, &after))
    }

    /// Forks, and kills.
    async fn cycle(&self, client: &Client, children: Option<Vec<SandboxInfo>>) -> Result<(), CliError> {
        let children = match children {
            Some(children) => children,
            None => fork::create(client, &fork::plainly(self.tag, self.n)).await?,
        };
        fork::end_all(client, &children).await.map(drop)
    }

    /// Forks, kills the controller, and has the next one kill the children.
    async fn cycle_with_kill(&self, context: &Context, client: &Client) -> Result<Client, CliError> {
        let children = fork::create(client, &fork::plainly(self.tag, self.n)).await?;
        let counts: HostCounts = client.get("/v1/host").await?;
        let endpoint = client.endpoint();
        blocking(move || kill_controller(&endpoint, &counts)).await??;
        let client = back(context, counts.controller_pid).await?;
        let known: Vec<SandboxInfo> = client.get("/v1/sandboxes").await?;
        let ids: BTreeMap<&str, &str> = known.iter().map(|s| (s.id.as_str(), s.state.as_str())).collect();
        if let Some(lost) = children.iter().find(|child| ids.get(child.id.as_str()) != Some(&"running")) {
            let text = format!("{} does not run any more under the next controller", lost.id);
            return Err(CliError::local(ErrorClass::Internal, text));
        }
        self.cycle(&client, Some(children)).await?;
        Ok(client)
    }
}

/// Waits until two looks see the same, and where there is something to compare with, nothing more than before.
async fn at_rest(client: &Client, before: Option<&HostCounts>) -> Result<HostCounts, CliError> {
    let deadline = Instant::now() + REST_WITHIN;
    let mut last: Option<HostCounts> = None;
    loop {
        let counts: HostCounts = client.get("/v1/host").await?;
        let still = last.is_some_and(|last| report::objects(&last) == report::objects(&counts));
        let grown = before.is_some_and(|before| !report::grown(before, &counts).is_empty());
        if (still && !grown) || Instant::now() >= deadline {
            return Ok(counts);
        }
        last = Some(counts);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Ends that very process without a word, wherever it is.
fn kill_controller(endpoint: &str, counts: &HostCounts) -> Result<(), CliError> {
    let (pid, ticks) = (counts.controller_pid, counts.controller_start_ticks);
    let line = format!("[ \"$(cut -d' ' -f22 /proc/{pid}/stat)\" = {ticks} ] && kill -KILL {pid}");
    if shell_line(endpoint, &line)? {
        return Ok(());
    }
    let failed = |e| CliError::caused(ErrorClass::Internal, "the controller could not be killed", e);
    match Process::find(pid, ticks).map_err(failed)? {
        Some(controller) => controller.kill().map_err(failed),
        None => {
            let text = format!("the controller at {endpoint} is no process of this computer");
            Err(CliError::usage(text).with_hint("--kill-controller works where the controller runs"))
        }
    }
}

/// Waits until another controller than that process answers.
async fn back(context: &Context, pid: u32) -> Result<Client, CliError> {
    let deadline = Instant::now() + BACK_WITHIN;
    loop {
        let answer = async {
            let client = context.client().await?;
            let counts: HostCounts = client.get("/v1/host").await?;
            Ok::<_, CliError>((client, counts.controller_pid))
        };
        match answer.await {
            Ok((client, now)) if now != pid => return Ok(client),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Ok(_) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_that_very_process_is_killed() {
        let stranger = HostCounts {
            controller_pid: std::process::id(),
            controller_start_ticks: 1,
            ..HostCounts::default()
        };
        assert!(kill_controller("http://127.0.0.1:1", &stranger).is_err());
    }
}
