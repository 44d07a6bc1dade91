//! TLS to a controller that is not on this computer.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{BoxError, CliError};

/// Names the file of certificates that are trusted in the place of this computer's.
const CA_FILE: &str = "FORKD_CA_FILE";

/// How connections are encrypted, and whom they trust.
#[derive(Clone)]
pub(crate) struct Encryption(TlsConnector);

impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encryption")
    }
}

impl Encryption {
    /// Encrypts a connection to whom `authority` names, who has to prove it.
    pub(crate) async fn of(
        &self,
        authority: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        Ok(self.0.connect(server_name(authority)?, stream).await?)
    }
}

/// Trusts whom this computer trusts, or whom `FORKD_CA_FILE` (PEM) names.
pub(crate) fn encryption() -> Result<Encryption, CliError> {
    // Another part of the program may have chosen one before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = match std::env::var_os(CA_FILE).filter(|path| !path.is_empty()) {
        Some(path) => trusting(std::path::Path::new(&path))?,
        None => ClientConfig::with_platform_verifier()
            .map_err(|e| CliError::usage(format!("the certificates of this computer cannot be used: {e}")))?,
    };
    Ok(Encryption(TlsConnector::from(Arc::new(config))))
}

fn trusting(path: &std::path::Path) -> Result<ClientConfig, CliError> {
    let bad = |e: String| CliError::usage(format!("{CA_FILE}: {} cannot be used: {e}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))? {
        let certificate = certificate.map_err(|e| bad(e.to_string()))?;
        roots.add(certificate).map_err(|e| bad(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("it has no certificate".to_owned()));
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// The name that the other end has to prove: the host of an authority.
fn server_name(authority: &str) -> Result<ServerName<'static>, BoxError> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    Ok(ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']').to_owned())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_is_proved() {
        for (authority, name) in
            [("a.example:8889", "a.example"), ("[::1]:8889", "::1"), ("10.0.0.1:1", "10.0.0.1")]
        {
            assert_eq!(server_name(authority).unwrap().to_str(), name);
        }
        assert!(server_name("not a name:1").is_err());
    }
}
