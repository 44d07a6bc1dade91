//! `forkd serve`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use forkd_controller::{
    ChosenToken, Doors, GuestPorts, GuestPortsParseError, Hosts, Listen, ListenParseError, OpenServiceError,
    ServeError, Service, ServiceOptions, TlsFiles,
};
use forkd_engine::{ConfigError, DEFAULT_WAITING, Engine, EngineConfig, EngineError};
use forkd_protocol::error::ErrorClass;
use tracing_subscriber::EnvFilter;

use crate::config::{self, ConfigFileError};
use crate::context::{Context, DEFAULT_LISTEN};
use crate::error::CliError;

/// Run the controller.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd serve\n  forkd serve --listen unix:/run/forkd.sock --root /srv/forkd\n  \
                  forkd serve --listen 0.0.0.0:8889 --tls-cert cert.pem --tls-key key.pem\n\n\
                  The Unix socket ROOT/forkd.sock is always there for the owner of the controller, and demands no token.\n\
                  Loopback demands one once there is one (`forkd token create`); other addresses need TLS and a token.\n\
                  SIGTERM ends it; sandboxes run on, and the next controller finds them again, where the configuration\n\
                  does not say otherwise."
)]
pub(crate) struct Args {
    /// Where to listen, more than once for several places: an address with port, or unix:/PATH (default: 127.0.0.1:8889)
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Listen>,
    /// Certificates for addresses that other computers reach, PEM; read again when the file changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Their key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A token that may do everything, beside those of `forkd token`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The owner's token: it may do everything, and unlike any other does not close loopback to those who have none
    #[arg(long, value_name = "FILE")]
    owner_token_file: Option<PathBuf>,
    /// A name, with all below it, by which loopback is reached, beside those of this computer
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Ports of loopback at which forkd's published Python client reaches sandboxes: any, off, or a range FIRST-LAST
    /// (default: any)
    #[arg(long, value_name = "PORTS")]
    guest_ports: Option<GuestPorts>,
    /// Folder of images, snapshots and sandboxes (default: /var/lib/forkd)
    #[arg(long, value_name = "DIR", env = "FORKD_ROOT")]
    root: Option<PathBuf>,
    /// How many monitors are started ahead of time for the next forks; 0 is none (default: 16)
    #[arg(long, value_name = "N", env = "FORKD_WAITING", value_parser = waiting)]
    waiting: Option<usize>,
    /// Configuration (default: /etc/forkd/forkd.toml, where it exists); docs/configuration.md tells its keys
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How log lines are written, to standard error; FORKD_LOG says which (such as debug, or forkd_engine=debug)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    /// Leave the session of whoever started it
    #[arg(long, hide = true)]
    detach: bool,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one object a line, with the spans that it lies in.
    Json,
}

/// The owner's own door, below the root.
pub(crate) const SOCKET: &str = "forkd.sock";
/// Root of the store where nobody says otherwise.
pub(crate) const DEFAULT_ROOT: &str = "/var/lib/forkd";

pub(crate) async fn run(args: Args, _context: &Context) -> Result<u8, CliError> {
    if args.detach {
        // Signals to that session's groups are not meant for the controller. Fails only for a group leader,
        // which nobody who passes this flag starts.
        let _ = rustix::process::setsid();
    }
    log(args.log_format);
    let file = config::load(args.config.as_deref())?;
    let listen = if args.listen.is_empty() {
        vec![file.listen.as_deref().unwrap_or(DEFAULT_LISTEN).parse::<Listen>()?]
    } else {
        args.listen
    };
    let options = ServiceOptions {
        hosts: Hosts::new(args.host),
        chosen: args.token_file.as_deref().map(chosen_token).transpose()?,
        owner: args.owner_token_file.as_deref().map(chosen_token).transpose()?,
        guest_ports: args.guest_ports.or(file.guest_ports()?).unwrap_or_default(),
    };
    let tls = args.tls_cert.zip(args.tls_key).map(|(cert, key)| TlsFiles { cert, key });
    let root = args.root.or_else(|| file.root.clone()).unwrap_or_else(|| DEFAULT_ROOT.into());
    let config = EngineConfig {
        waiting: args.waiting.or(file.waiting).unwrap_or(DEFAULT_WAITING),
        limits: file.limits,
        admission: file.admission(),
        ..EngineConfig::from_env(root)?
    };
    let socket = config.root.join(SOCKET);
    let inside = listen.iter().all(Listen::is_local);
    let mut doors = Doors { listen, tls, has_token: false };
    // Where no token is needed for it, the address is taken before anything is done.
    let early = if inside { Some(doors.clone().bind().await?) } else { None };
    let service = Service::open(Engine::open(config).await?, options).await?;
    doors.has_token = service.has_token();
    let bound = match early {
        Some(bound) => bound,
        None => doors.bind().await?,
    };
    bound.and_unix(socket).await?.serve(service, file.drain()).await?;
    Ok(0)
}

/// A token that a person put into a file. It never stands among arguments, which everybody can list.
pub(super) fn chosen_token(path: &Path) -> Result<ChosenToken, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| CliError::io(format!("reading the token {}", path.display()), e))?;
    ChosenToken::new(text.trim())
        .map_err(|e| CliError::usage(format!("the token in {} is refused: {e}", path.display())))
}

/// More would be a sign of a mistake: forks that find none start their own.
fn waiting(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n <= 256).ok_or_else(|| "a number from 0 to 256".to_owned())
}

fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("FORKD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let to_stderr = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is impossible: this is the only place that sets one.
    let _ = match format {
        LogFormat::Json => to_stderr.json().try_init(),
        LogFormat::Text => to_stderr.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
}

impl From<ConfigFileError> for CliError {
    fn from(e: ConfigFileError) -> Self {
        Self::caused(ErrorClass::Caller, "the configuration cannot be used", e)
    }
}

impl From<ListenParseError> for CliError {
    fn from(e: ListenParseError) -> Self {
        Self::usage(e.to_string())
    }
}

impl From<GuestPortsParseError> for CliError {
    fn from(e: GuestPortsParseError) -> Self {
        Self::usage(e.to_string())
    }
}

impl From<ConfigError> for CliError {
    fn from(e: ConfigError) -> Self {
        Self::usage(e.to_string())
    }
}

impl From<EngineError> for CliError {
    fn from(e: EngineError) -> Self {
        Self::local(e.class(), e.body().error)
    }
}

impl From<OpenServiceError> for CliError {
    fn from(e: OpenServiceError) -> Self {
        Self::caused(ErrorClass::Internal, "the controller does not start", e)
    }
}

impl From<ServeError> for CliError {
    fn from(e: ServeError) -> Self {
        let class = match e {
            ServeError::Refused { .. } | ServeError::Tls(_) => ErrorClass::Caller,
            ServeError::Taken { .. } => ErrorClass::Conflict,
            ServeError::Io { .. } => ErrorClass::Internal,
        };
        Self::caused(class, "the controller does not listen", e)
    }
}
