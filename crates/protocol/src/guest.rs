//! Host to agent: HTTP/1.1 on vsock.
//!
//! Two families of routes on [`AGENT_PORT`]: the sandbox API of E2B (`/process.Process/*`,
//! `/filesystem.Filesystem/*`, `/files`, `/health`), and forkd's own verbs below, all `POST` with a JSON body
//! and a JSON answer. A refused verb answers a 4xx or 5xx status with a [`GuestRefusal`].

mod image;
pub mod network;
mod secret;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::image::{IMAGE_SETTINGS, ImageSettings};
use self::network::GuestNetwork;
pub use self::secret::{GiveSecrets, GuestSecret, PATH_SECRETS, SECRETS_FOLDER, SECRETS_VERSION, Thaw};

/// Version of the guest protocol; controllers speak to agents of every released version.
pub const GUEST_VERSION: u32 = 4;
/// The first version in which a guest can be continued as who it was.
pub const CONTINUE_VERSION: u32 = 2;
/// The first version whose agent connects the host to ports of the guest ([`PATH_TUNNEL`]).
pub const TUNNEL_VERSION: u32 = 3;
/// vsock port of the agent.
pub const AGENT_PORT: u32 = 49983;
/// The guest's vsock context id; the same in every guest, since each has a vsock device of its own.
pub const GUEST_CID: u64 = 3;

/// `GET`: [`Health`].
pub const PATH_HEALTH: &str = "/forkd/v1/health";
/// `POST` [`Warm`]: [`Evaluated`]. Starts the warm interpreter where it does not run yet.
pub const PATH_WARM: &str = "/forkd/v1/warm";
/// `POST` [`Eval`]: [`Evaluated`].
pub const PATH_EVAL: &str = "/forkd/v1/eval";
/// `POST` [`Exec`]: [`Executed`].
pub const PATH_EXEC: &str = "/forkd/v1/exec";
/// `POST` [`Freeze`]: [`Frozen`].
pub const PATH_FREEZE: &str = "/forkd/v1/freeze";
/// `POST` [`Thaw`]: empty object.
pub const PATH_THAW: &str = "/forkd/v1/thaw";
/// Beside the sandbox API, as the host's callers use it: `GET ?path=&username=`: an archive of what lies there. `POST`: unpacks one below a folder.
pub const PATH_TAR: &str = "/tar";
/// `POST` [`Identity`]: [`Identified`].
pub const PATH_IDENTITY: &str = "/forkd/v1/identity";

/// `POST` [`Continuation`]: [`Identified`]. From [`CONTINUE_VERSION`] on.
pub const PATH_CONTINUE: &str = "/forkd/v1/continue";

/// `POST` of this and a port number, [`TUNNEL_ECHO`] or [`TUNNEL_SOURCE`], with `Upgrade:` [`TUNNEL_PROTOCOL`]: 101, and from then on the
/// connection is one to that port of the guest, each direction ending by itself. From [`TUNNEL_VERSION`] on.
pub const PATH_TUNNEL: &str = "/forkd/v1/tunnel/";
/// In the place of a port: what is sent comes back.
pub const TUNNEL_ECHO: &str = "echo";
/// In the place of a port: zeroes come until the other side ends. From version 4 on.
pub const TUNNEL_SOURCE: &str = "source";
/// What a connection becomes that is a tunnel, between host and agent as between client and controller.
pub const TUNNEL_PROTOCOL: &str = "forkd-tunnel";
/// Code of a refused tunnel: nothing in the guest listens on that port.
pub const PORT_NOT_OPEN: &str = "port_not_open";
/// `GET`: [`GuestMetrics`]. From [`TUNNEL_VERSION`] on.
pub const PATH_METRICS: &str = "/metrics";

/// How a guest is doing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GuestMetrics {
    /// Processors.
    pub cpu_count: u32,
    /// How much of all of them together was used just now, percent.
    pub cpu_used_pct: f64,
    /// Memory that cannot be given to others, bytes.
    pub mem_used: u64,
    /// Memory that the guest's kernel manages, bytes.
    pub mem_total: u64,
    /// Memory that holds files, bytes.
    pub mem_cache: u64,
    /// Of the root disk, bytes.
    pub disk_used: u64,
    /// Of the root disk, bytes.
    pub disk_total: u64,
}

/// The agent is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// [`GUEST_VERSION`] of the agent.
    pub protocol: u32,
    /// Version of the agent program.
    pub agent: String,
    /// The identity last given; empty in a parent.
    pub identity: String,
    /// Whether a warm interpreter runs.
    pub warm: bool,
    /// Version of numpy in the warm interpreter, where it is loaded.
    pub numpy_version: Option<String>,
    /// Whether the workload is frozen.
    pub frozen: bool,
    /// How many of the processes run that were started to be followed or left alone; not those of calls that are waited
    /// for. From version 4 on.
    #[serde(default)]
    pub processes: u64,
}

/// Run warm-up code in the interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    /// Statements.
    pub code: String,
    /// Give up after this long.
    pub timeout_ms: u64,
}

/// Evaluate in the warm interpreter (started on first use where the snapshot has none).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eval {
    /// An expression, or statements whose last one may be an expression.
    pub code: String,
    /// Interrupt after this long; the interpreter survives.
    pub timeout_ms: u64,
}

/// An exception in the interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonError {
    /// Type, such as `ZeroDivisionError`.
    pub name: String,
    /// Message.
    pub value: String,
    /// Formatted traceback.
    pub traceback: String,
}

/// What evaluating gave. Nothing is cut without its flag.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Evaluated {
    /// `repr` of the last expression's value; absent where it was `None` or there was none.
    pub result: Option<String>,
    /// The value as JSON text, where it has one.
    pub result_json: Option<String>,
    /// Text the code printed.
    pub stdout: String,
    /// Text the code printed to stderr.
    pub stderr: String,
    /// The exception that ended it.
    pub error: Option<PythonError>,
    /// True where it was interrupted at its timeout (then `error` is set too).
    pub timed_out: bool,
    /// True where stdout, stderr or result were longer than the agent carries (16 MiB each).
    pub truncated: bool,
    /// Time in the interpreter.
    pub micros: u64,
}

/// Run a command to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments.
    pub args: Vec<String>,
    /// Added to the sandbox's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home where absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// User name or uid; root where absent.
    #[serde(default)]
    pub user: Option<String>,
    /// Standard input, base64; empty input where absent.
    #[serde(default)]
    pub stdin_base64: Option<String>,
    /// The whole process tree is killed after this long; 0 for never.
    pub timeout_ms: u64,
    /// Most bytes kept of each of stdout and stderr.
    pub max_output: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Exit code; -1 where a signal ended it.
    pub exit_code: i32,
    /// Name of the signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Bytes of stdout, base64.
    pub stdout_base64: String,
    /// Bytes of stderr, base64.
    pub stderr_base64: String,
    /// True where output beyond `max_output` was dropped.
    pub truncated: bool,
    /// True where it was killed at its timeout.
    pub timed_out: bool,
    /// From before it was started until it had ended, microseconds; 0 from agents that do not tell.
    #[serde(default)]
    pub micros: u64,
}

/// Make the workload stand still.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Give up after this long, milliseconds; 2000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// The workload stands still; file systems were synced just before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// How long freezing took.
    pub micros: u64,
}

/// Who a restored guest is now. Applied before the workload thaws, but for the warm interpreter, which takes new
/// random state as the first thing it does afterwards; a step that fails fails the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Sandbox id.
    pub id: String,
    /// Host name.
    pub hostname: String,
    /// 32 lower-case hex digits.
    pub machine_id: String,
    /// Boot id as the workload sees it (a UUID).
    pub boot_id: String,
    /// At least 64 bytes from the host's generator, base64.
    pub entropy_base64: String,
    /// Nanoseconds since the Unix epoch, when the request was sent.
    pub realtime_ns: u64,
    /// Environment that every later process is given.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its network, where its machine has a network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<GuestNetwork>,
    /// All secrets that the workload has. From [`SECRETS_VERSION`] on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<GuestSecret>,
}

/// A restored guest goes on as who it was: nobody else did meanwhile. Carried out while the workload stands still, which
/// it does until [`PATH_THAW`]; told twice before that, it is done twice, and no harm comes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// At least 64 bytes from the host's generator, base64.
    pub entropy_base64: String,
    /// Nanoseconds since the Unix epoch, when the request was sent.
    pub realtime_ns: u64,
}

/// The guest is who it was told to be, and its workload runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Name and duration of each step, in order.
    pub steps: Vec<(String, u64)>,
}

/// A verb that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct GuestRefusal {
    /// For the machine, such as `guest_did_not_freeze`, `no_python`, `after_fork_failed`.
    pub code: String,
    /// For the person.
    pub message: String,
}
