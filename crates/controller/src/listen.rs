//! Where the controller listens, and how it ends.

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use forkd_engine::Engine;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::drain::{self, Drain, Gate, Leave};

/// How long the answers of calls that have ended may take to be sent.
const FLUSH: Duration = Duration::from_secs(1);

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A Unix socket, for its owner alone.
    Unix(PathBuf),
}

/// What is written is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address to listen at: write 127.0.0.1:8889, [::1]:8889 or unix:/PATH")]
pub struct ListenParseError(String);

impl FromStr for Listen {
    type Err = ListenParseError;

    fn from_str(given: &str) -> Result<Self, ListenParseError> {
        let bad = || ListenParseError(given.to_owned());
        if let Some(path) = given.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(bad()) };
        }
        let numeric = given.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        numeric.as_deref().unwrap_or(given).parse().map(Self::Tcp).map_err(|_| bad())
    }
}

/// Why a controller does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can be reached from elsewhere. Use loopback or a Unix socket, and a tunnel to it.
    #[error(
        "{address} can be reached from other computers, and whoever reaches the API controls this host; \
         without TLS and tokens it listens on loopback (127.0.0.1, ::1) or a Unix socket only"
    )]
    Refused {
        /// The address.
        address: SocketAddr,
    },
    /// Another program listens there. End it or choose another address.
    #[error("another program listens at {at}")]
    Taken {
        /// The address or path.
        at: String,
    },
    /// A system call failed.
    #[error("could not {what}")]
    Io {
        /// Which, on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A place where clients can already connect; they are answered once it serves.
#[derive(Debug)]
pub enum Bound {
    /// A loopback address.
    Tcp(TcpListener),
    /// A Unix socket and where it lies.
    Unix(UnixListener, PathBuf),
}

impl Listen {
    /// Takes the address, so that nothing else is done where it cannot be had.
    pub async fn bind(&self) -> Result<Bound, ServeError> {
        match self {
            Self::Tcp(address) if !address.ip().is_loopback() => {
                Err(ServeError::Refused { address: *address })
            }
            Self::Tcp(address) => {
                let bound = TcpListener::bind(address).await;
                bound.map(Bound::Tcp).map_err(|e| bind_error(address.to_string(), e))
            }
            Self::Unix(path) => Ok(Bound::Unix(bind_unix(path).await?, path.clone())),
        }
    }
}

impl Bound {
    /// Serves until SIGTERM or SIGINT, then ends as `drain` says.
    pub async fn serve(self, engine: Engine, drain: Drain) -> Result<(), ServeError> {
        let gate = Gate::default();
        let router = crate::router(engine.clone());
        let router = router.layer(axum::middleware::from_fn_with_state(gate.clone(), drain::gate));
        let stop = stop_signal(gate, drain.within)?;
        match self {
            Self::Tcp(listener) => {
                tracing::info!(address = ?listener.local_addr().ok(), "listening");
                // Answers are small and waited for: never held back to be joined with a next one.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                serve_on(listener, router, stop).await?;
            }
            Self::Unix(listener, path) => {
                tracing::info!(path = %path.display(), "listening");
                let served = serve_on(listener, router, stop).await;
                drop(std::fs::remove_file(path));
                served?;
            }
        }
        match drain.leave {
            Leave::Sandboxes => tracing::info!("controller ended; sandboxes run on"),
            Leave::Nothing => end_all(&engine).await,
        }
        engine.shutdown();
        Ok(())
    }
}

/// Binds aside, restricts, then renames: at no moment may others connect, and a socket that was left behind
/// by a killed controller is replaced.
async fn bind_unix(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |what: &str, source| ServeError::Io { what: format!("{what} {}", path.display()), source };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() || UnixStream::connect(path).await.is_ok() => {
            return Err(ServeError::Taken { at: path.display().to_string() });
        }
        _ => {}
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    drop(std::fs::remove_file(&aside));
    let listener = UnixListener::bind(&aside).map_err(|e| failed("bind", e))?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&aside, path))
        .map_err(|e| failed("place", e))?;
    Ok(listener)
}

fn bind_error(at: String, source: io::Error) -> ServeError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::Taken { at },
        _ => ServeError::Io { what: format!("listen at {at}"), source },
    }
}

async fn end_all(engine: &Engine) {
    let ids: Vec<_> = engine.sandboxes().into_iter().filter_map(|info| info.id.parse().ok()).collect();
    let ends = futures::future::join_all(ids.iter().map(|id| engine.kill(id))).await;
    let failed = ends.into_iter().filter(Result::is_err).count();
    tracing::info!(ended = ids.len() - failed, failed, "controller ended, and its sandboxes with it");
}

/// Becomes true after the first SIGTERM or SIGINT, once the calls under way have ended or had their time.
fn stop_signal(gate: Gate, within: Duration) -> Result<watch::Receiver<bool>, ServeError> {
    let listen = |kind| {
        signal(kind).map_err(|source| ServeError::Io { what: "listen for signals".to_owned(), source })
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        gate.close();
        tracing::info!(?within, "ending: nothing new is begun, calls under way may end");
        if tokio::time::timeout(within, gate.empty()).await.is_err() {
            tracing::warn!("calls that are still under way are broken off");
        }
        sender.send_replace(true);
    });
    Ok(receiver)
}

async fn asked(mut stop: watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Serves until it is told to stop.
async fn serve_on<L>(listener: L, router: Router, stop: watch::Receiver<bool>) -> Result<(), ServeError>
where
    L: Listener<Addr: std::fmt::Debug>,
{
    let serving = axum::serve(listener, router).with_graceful_shutdown(asked(stop.clone())).into_future();
    tokio::select! {
        served = serving => served.map_err(|source| ServeError::Io { what: "serve".to_owned(), source }),
        () = async { asked(stop).await; tokio::time::sleep(FLUSH).await } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        let tcp = |text: &str| Listen::Tcp(text.parse().unwrap());
        assert_eq!("127.0.0.1:1".parse(), Ok(tcp("127.0.0.1:1")));
        assert_eq!("localhost:1".parse(), Ok(tcp("127.0.0.1:1")));
        assert_eq!("[::1]:1".parse(), Ok(tcp("[::1]:1")));
        assert_eq!("unix:/a".parse(), Ok(Listen::Unix("/a".into())));
        assert_eq!("unix:///a".parse(), Ok(Listen::Unix("/a".into())));
        for bad in ["", "8889", "unix:a", "host:1", "127.0.0.1:99999"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn an_address_that_others_reach_is_refused_with_the_reason() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let e = Listen::Tcp(address.parse().unwrap()).bind().await.unwrap_err();
            assert!(matches!(e, ServeError::Refused { .. }), "{address}");
            assert!(e.to_string().contains("TLS"));
        }
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = bind_unix(&path).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(bind_unix(&path).await, Err(ServeError::Taken { .. })));
        drop(first);
        bind_unix(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind_unix(&path).await, Err(ServeError::Taken { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
