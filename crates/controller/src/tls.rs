//! TLS for listeners that other computers reach. Certificate and key are read again when their files change, so that
//! renewing them needs no restart.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

use crate::access::Peer;

/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many do that at once; others wait to be accepted.
const HANDSHAKES: usize = 256;
/// How often files are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where certificate chain and key lie, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those it was signed with.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why certificate and key are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or holds nothing of the kind.
    #[error("{path} holds no {what} in PEM form")]
    File {
        /// `certificate` or `private key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not fit together, or are of no known kind.
    #[error("certificate and key of {path} are refused")]
    Refused {
        /// Of the certificate.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads and checks them.
    pub(crate) fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let unreadable = |what, path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::File { what, path, source }
        };
        let certs =
            CertificateDer::pem_file_iter(&self.cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certs = certs.map_err(unreadable("certificate", &self.cert))?;
        if certs.is_empty() {
            return Err(unreadable("certificate", &self.cert)(rustls::pki_types::pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(unreadable("private key", &self.key))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certs, key));
        let mut config = config.map_err(|source| TlsError::Refused { path: self.cert.clone(), source })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Changes when either file does.
    fn mark(&self) -> Option<[(u64, i64, i64, u64); 2]> {
        let of =
            |path: &Path| fs::metadata(path).map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.size())).ok();
        Some([of(&self.cert)?, of(&self.key)?])
    }
}

/// What is agreed on with new clients.
#[derive(Debug)]
struct Current {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    mark: Option<[(u64, i64, i64, u64); 2]>,
    looked: Instant,
}

impl Current {
    fn config(&mut self) -> Arc<ServerConfig> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let mark = self.files.mark();
            if mark.is_some() && mark != self.mark {
                match self.files.load() {
                    Ok(config) => {
                        info!(certificate = %self.files.cert.display(), "read again");
                        (self.config, self.mark) = (config, mark);
                    }
                    // Half renewed: the old one goes on until both are there.
                    Err(e) => warn!(error = %forkd_protocol::error::chain(&e), "the old certificate is kept"),
                }
            }
        }
        Arc::clone(&self.config)
    }
}

/// Connections that have agreed on keys.
#[derive(Debug)]
pub(crate) struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Has clients of `listener` agree on keys, beside each other: a slow one keeps nobody.
    pub(crate) fn new(listener: TcpListener, files: TlsFiles) -> Result<Self, TlsListenError> {
        let address = listener.local_addr().map_err(TlsListenError::Address)?;
        let mark = files.mark();
        let config = files.load().map_err(TlsListenError::Tls)?;
        let current = Current { files, config, mark, looked: Instant::now() };
        let (sender, ready) = mpsc::channel(HANDSHAKES);
        tokio::spawn(accept_all(listener, current, sender));
        Ok(Self { ready, address })
    }
}

/// Why there is no such listener.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsListenError {
    #[error(transparent)]
    Tls(TlsError),
    #[error("the address of a listener is not known")]
    Address(#[source] io::Error),
}

async fn accept_all(
    listener: TcpListener,
    mut current: Current,
    sender: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    // Out of descriptors: those of others are closed sooner or later.
                    warn!(error = %e, "no connection could be accepted");
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
            },
            () = sender.closed() => return,
        };
        drop(stream.set_nodelay(true));
        let acceptor = TlsAcceptor::from(current.config());
        let sender = sender.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => drop(sender.send((stream, peer)).await),
                Ok(Err(e)) => debug!(%peer, error = %e, "no keys were agreed on"),
                Err(_) => debug!(%peer, "no keys were agreed on in time"),
            }
            drop(permit);
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        match self.ready.recv().await {
            Some((stream, peer)) => (stream, Peer::Tls(peer)),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::Tls(self.address))
    }
}
