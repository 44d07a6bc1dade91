//! Where nobody names a controller and none runs, one is started: here or in the machine, as `forkd doctor`
//! says.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::Healthz;

use crate::client::Client;
use crate::commands::serve::SOCKET;
use crate::context::{DEFAULT_LISTEN, DEFAULT_URL};
use crate::error::CliError;
use crate::host::{self, Report, Way};
use crate::machine::{self, StartOptions};
use crate::ui::Ui;
use crate::upload::blocking;

/// How long an answer of a controller that listens may take, on a computer that is busy.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a controller that was started may take until it answers: it adopts sandboxes and sweeps first.
const START: Duration = Duration::from_secs(60);
/// How often it is asked meanwhile; that it listens is not said anywhere else.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A client of the controller at the usual place, which is started where it does not run.
pub(crate) async fn controller(ui: &Ui) -> Result<Client, CliError> {
    let client = Client::new(DEFAULT_URL)?;
    if answers(&client).await {
        return as_owner(client).await;
    }
    let report = blocking(host::look_again).await?;
    match report.way {
        Some(Way::Native) => {
            start_here(ui, &client).await?;
            return as_owner(client).await;
        }
        Some(Way::Machine) => {}
        None => return Err(unfit(&report)),
    }
    ui.note(&format!("{}; using the machine (`forkd machine status`)", report.against_native()));
    let speaker = ui.clone();
    let endpoint = blocking(move || machine::start(&speaker, &StartOptions::from_env())).await??;
    Ok(Client::new(&endpoint.url)?.with_own_token(machine::owner_token))
}

/// The owner's way to the controller that answers at the usual place: in the machine by the machine's token, here by the
/// socket that only its owner can open. Others, and whoever names a token, come by loopback.
async fn as_owner(client: Client) -> Result<Client, CliError> {
    if client.has_token() {
        return Ok(client);
    }
    if machine::serves(&client.endpoint()) {
        return Ok(client.with_own_token(machine::owner_token));
    }
    let socket = crate::commands::default_root().join(SOCKET);
    if !socket.exists() {
        return Ok(client);
    }
    let own = Client::new(&format!("unix:{}", socket.display()))?;
    Ok(if answers(&own).await { own } else { client })
}

fn unfit(report: &Report) -> CliError {
    CliError::local(ErrorClass::HostUnfit, format!("forkd cannot run here: {}", report.failed()))
}

async fn answers(client: &Client) -> bool {
    matches!(
        tokio::time::timeout(ANSWER, client.get::<Healthz>("/healthz")).await,
        Ok(Ok(Healthz { ok: true }))
    )
}

/// Starts `forkd serve` so that it outlives this command, and waits until it answers.
async fn start_here(ui: &Ui, client: &Client) -> Result<(), CliError> {
    let step = ui.step("Starting the controller");
    let root = crate::commands::default_root();
    let log = root.join("controller.log");
    let mut child = spawn(&root, &log)?;
    let began = Instant::now();
    while !answers(client).await {
        let ended = child.try_wait().map_err(|e| CliError::io("watching the controller", e))?;
        // Another one may have been faster; then this one found the store locked and the other answers.
        if let Some(status) = ended
            && !answers(client).await
        {
            return Err(not_started(&format!("it ended ({status})"), &log));
        }
        if began.elapsed() > START {
            return Err(not_started("it does not answer", &log));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    step.done(DEFAULT_LISTEN);
    Ok(())
}

fn spawn(root: &Path, log: &Path) -> Result<Child, CliError> {
    let failed = |e| CliError::io("starting the controller", e);
    std::fs::create_dir_all(root).map_err(|e| CliError::io(format!("making {}", root.display()), e))?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| CliError::io(format!("opening {}", log.display()), e))?;
    let program = std::env::current_exe().map_err(failed)?;
    Command::new(program)
        .args(["serve", "--detach", "--listen", DEFAULT_LISTEN, "--root"])
        .arg(root)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_for_daemon(&name.to_string_lossy())))
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(failed)?)
        .stderr(file)
        .spawn()
        .map_err(failed)
}

/// Whether a controller that outlives its caller is given a variable: secrets of the caller are none of its business.
fn is_for_daemon(name: &str) -> bool {
    const WHOLE: [&str; 9] =
        ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_COLOR"];
    let lower = name.to_ascii_lowercase();
    // A token is the client's, not the controller's.
    WHOLE.contains(&name)
        || ["LC_", "RUST_", "XDG_"].iter().any(|start| name.starts_with(start))
        || (name.starts_with("FORKD_") && !name.starts_with("FORKD_TOKEN"))
        || lower.ends_with("_proxy")
}

fn not_started(why: &str, log: &Path) -> CliError {
    let tail = machine::tail(log, 5);
    let said = if tail.is_empty() { String::new() } else { format!("; its last words: {tail}") };
    CliError::local(ErrorClass::Internal, format!("the controller was started, but {why}{said}"))
        .with_hint(format!("its log is {}", log.display()))
}
