//! Where the controller listens, and how it ends.

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use forkd_engine::Engine;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::access::Peer;
use crate::drain::{self, Drain, Gate, Leave};
use crate::service::Service;
use crate::tls::{TlsError, TlsFiles, TlsListenError, TlsListener};

/// How long the answers of calls that have ended may take to be sent.
const FLUSH: Duration = Duration::from_secs(1);

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// An address; one that is not loopback needs TLS and a token.
    Tcp(SocketAddr),
    /// A Unix socket, for its owner alone.
    Unix(PathBuf),
}

/// What is written is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address to listen at: write 127.0.0.1:8889, [::1]:8889 or unix:/PATH")]
pub struct ListenParseError(String);

impl Listen {
    /// Whether only this computer reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

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
    /// The address can be reached from elsewhere, and something is missing for that.
    #[error(
        "{address} can be reached from other computers, and whoever reaches the API controls this host; \
         what is missing: {}", missing.join("; ")
    )]
    Refused {
        /// The address.
        address: SocketAddr,
        /// What is missing, and how to get it.
        missing: Vec<&'static str>,
    },
    /// Certificate or key are of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
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

/// All places to listen at, and what is there to listen safely.
#[derive(Debug, Clone, Default)]
pub struct Doors {
    /// The places.
    pub listen: Vec<Listen>,
    /// Certificate and key for those that other computers reach.
    pub tls: Option<TlsFiles>,
    /// Whether there is a token that is good.
    pub has_token: bool,
}

/// Places where clients can already connect; they are answered once it serves.
#[derive(Debug)]
pub struct Bound(Vec<Door>);

#[derive(Debug)]
enum Door {
    /// A loopback address.
    Loopback(LoopbackListener),
    /// An address that other computers reach.
    Tls(TlsListener),
    /// A Unix socket and where it lies.
    Unix(OwnerListener, PathBuf),
}

const NO_TLS: &str = "TLS: give --tls-cert and --tls-key (PEM files)";
const NO_TOKEN: &str = "a token: make one with `forkd token create --scope admin` (the controller may listen on \
                        loopback meanwhile), or give --token-file";

impl Doors {
    /// Takes the addresses, so that nothing else is done where one cannot be had.
    ///
    /// # Errors
    /// One can be reached from other computers and there is no TLS or no token; or it is taken.
    pub async fn bind(self) -> Result<Bound, ServeError> {
        let mut doors = Vec::new();
        for listen in &self.listen {
            doors.push(self.open(listen).await?);
        }
        Ok(Bound(doors))
    }

    async fn open(&self, listen: &Listen) -> Result<Door, ServeError> {
        match listen {
            Listen::Tcp(address) if address.ip().is_loopback() => {
                Ok(Door::Loopback(LoopbackListener(bind_tcp(address).await?)))
            }
            Listen::Tcp(address) => {
                let mut missing = Vec::new();
                missing.extend(self.tls.is_none().then_some(NO_TLS));
                missing.extend((!self.has_token).then_some(NO_TOKEN));
                match &self.tls {
                    Some(files) if missing.is_empty() => {
                        let listener = TlsListener::new(bind_tcp(address).await?, files.clone());
                        listener.map(Door::Tls).map_err(|e| match e {
                            TlsListenError::Tls(e) => e.into(),
                            TlsListenError::Address(source) => {
                                ServeError::Io { what: "read an address".to_owned(), source }
                            }
                        })
                    }
                    _ => Err(ServeError::Refused { address: *address, missing }),
                }
            }
            Listen::Unix(path) => Ok(Door::Unix(OwnerListener(bind_unix(path).await?), path.clone())),
        }
    }
}

impl Bound {
    /// Listens on a Unix socket besides.
    ///
    /// # Errors
    /// Something else lies there.
    pub async fn and_unix(mut self, path: PathBuf) -> Result<Self, ServeError> {
        let same = |door: &Door| matches!(door, Door::Unix(_, at) if *at == path);
        if !self.0.iter().any(same) {
            self.0.push(Door::Unix(OwnerListener(bind_unix(&path).await?), path));
        }
        Ok(self)
    }

    /// The addresses that were taken, in their order; sockets have none.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let address = |door: &Door| match door {
            Door::Loopback(listener) => listener.0.local_addr().ok(),
            Door::Tls(listener) => match Listener::local_addr(listener) {
                Ok(Peer::Tls(address)) => Some(address),
                _ => None,
            },
            Door::Unix(..) => None,
        };
        self.0.iter().filter_map(address).collect()
    }

    /// Serves until SIGTERM or SIGINT, then ends as `drain` says.
    pub async fn serve(self, service: Service, drain: Drain) -> Result<(), ServeError> {
        let gate = Gate::default();
        let gated = axum::middleware::from_fn_with_state(gate.clone(), drain::gate);
        let router = service.router().layer(gated);
        let stop = stop_signal(gate, drain.within)?;
        let serving = self.0.into_iter().map(|door| door.serve(router.clone(), stop.clone()));
        let served: Result<Vec<()>, ServeError> = futures::future::try_join_all(serving).await;
        service.audit().settle().await;
        match drain.leave {
            Leave::Sandboxes => tracing::info!("controller ended; sandboxes run on"),
            Leave::Nothing => end_all(service.engine()).await,
        }
        service.engine().shutdown();
        served.map(drop)
    }
}

impl Door {
    async fn serve(self, router: Router, stop: watch::Receiver<bool>) -> Result<(), ServeError> {
        match self {
            Self::Loopback(listener) => {
                tracing::info!(address = ?listener.0.local_addr().ok(), "listening");
                serve_on(listener, router, stop).await
            }
            Self::Tls(listener) => {
                tracing::info!(address = ?listener.local_addr().ok(), "listening, with TLS");
                serve_on(listener, router, stop).await
            }
            Self::Unix(listener, path) => {
                tracing::info!(path = %path.display(), "listening");
                let served = serve_on(listener, router, stop).await;
                drop(std::fs::remove_file(path));
                served
            }
        }
    }
}

/// A loopback address.
#[derive(Debug)]
pub(crate) struct LoopbackListener(pub(crate) TcpListener);

impl Listener for LoopbackListener {
    type Io = TcpStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (TcpStream, Peer) {
        let (stream, peer) = Listener::accept(&mut self.0).await;
        // Answers are small and waited for: never held back to be joined with a next one.
        drop(stream.set_nodelay(true));
        (stream, Peer::Loopback(peer))
    }

    fn local_addr(&self) -> io::Result<Peer> {
        self.0.local_addr().map(Peer::Loopback)
    }
}

impl Connected<IncomingStream<'_, LoopbackListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, LoopbackListener>) -> Self {
        stream.remote_addr().clone()
    }
}

impl Connected<IncomingStream<'_, OwnerListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, OwnerListener>) -> Self {
        stream.remote_addr().clone()
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// A Unix socket that only its owner and root can connect to.
#[derive(Debug)]
pub(crate) struct OwnerListener(UnixListener);

impl Listener for OwnerListener {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (UnixStream, Peer) {
        loop {
            let (stream, _) = Listener::accept(&mut self.0).await;
            // The mode of the file keeps others away; this does where somebody changed it.
            match stream.peer_cred().map(|peer| peer.uid()) {
                Ok(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => {
                    return (stream, Peer::Unix { uid });
                }
                Ok(uid) => tracing::warn!(uid, "another user was not let in at the Unix socket"),
                Err(e) => tracing::warn!(error = %e, "a client of the Unix socket is not known"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::Unix { uid: rustix::process::geteuid().as_raw() })
    }
}

async fn bind_tcp(address: &SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|e| bind_error(address.to_string(), e))
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
    L: Listener<Addr = Peer>,
    Peer: for<'a> Connected<IncomingStream<'a, L>>,
{
    let router = router.into_make_service_with_connect_info::<Peer>();
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
    async fn an_address_that_others_reach_is_refused_with_what_is_missing() {
        let tls = TlsFiles { cert: "/nowhere".into(), key: "/nowhere".into() };
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let listen = vec![address.parse().unwrap()];
            let doors = |tls, has_token| Doors { listen: listen.clone(), tls, has_token };
            let neither = doors(None, false).bind().await.unwrap_err().to_string();
            assert!(neither.contains("--tls-cert") && neither.contains("token create"), "{neither}");
            let no_tls = doors(None, true).bind().await.unwrap_err().to_string();
            assert!(no_tls.contains("--tls-cert") && !no_tls.contains("token create"), "{no_tls}");
            let no_token = doors(Some(tls.clone()), false).bind().await.unwrap_err().to_string();
            assert!(!no_token.contains("--tls-cert") && no_token.contains("token create"), "{no_token}");
        }
        let listen = vec!["0.0.0.0:0".parse().unwrap()];
        let bad = Doors { listen, tls: Some(tls), has_token: true }.bind().await.unwrap_err();
        assert!(matches!(bad, ServeError::Tls(TlsError::File { what: "certificate", .. })), "{bad}");
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
