//! Images out of registries (OCI distribution specification), through oci-client.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential};
use futures::StreamExt as _;
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol, linux_amd64_resolver};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;

use crate::blobs::{Blobs, sha256_hex};
use crate::{ContainerImage, Fetch, MAX_DOCUMENT_BYTES, MAX_LAYER_BYTES, OciError, config};

/// Without a byte for so long, a registry is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// Gets an image; blobs that the cache has are not fetched again.
pub(crate) async fn pull(
    reference: &Reference,
    fetch: &Fetch<'_>,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<ContainerImage, OciError> {
    let client = client(reference, fetch.insecure);
    let auth = credentials(reference, fetch.credentials)?;
    let image = reference.to_string();
    progress(&format!("asking {} for {}", reference.registry(), reference.repository()));
    let (manifest, digest, config) = client
        .pull_manifest_and_config(reference, &auth)
        .await
        .map_err(|e| OciError::of_registry(&image, e))?;
    if config.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(OciError::refused(&image, "its configuration", "is larger than 8 MiB"));
    }
    let config = config::parse(&image, config.as_bytes())?;
    if config.diff_ids.len() != manifest.layers.len() {
        return Err(OciError::refused(
            &image,
            "its manifest",
            "and its configuration differ in their layers",
        ));
    }
    let blobs = Blobs::open(fetch.cache)?;
    let mut layers = Vec::new();
    for (n, layer) in manifest.layers.iter().enumerate() {
        let title = format!("layer {} of {}", n + 1, manifest.layers.len());
        layers.push(blob(&client, reference, layer, &blobs, &title, progress).await?);
    }
    let origin = format!("oci {image} {digest}");
    Ok(ContainerImage { origin, layers, settings: config.settings })
}

fn client(reference: &Reference, insecure: bool) -> Client {
    // Another part of the program may have chosen one before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let registry = reference.resolve_registry();
    let plain = insecure || is_local(registry);
    let except = if plain { vec![registry.to_owned()] } else { Vec::new() };
    Client::new(ClientConfig {
        protocol: ClientProtocol::HttpsExcept(except),
        platform_resolver: Some(Box::new(linux_amd64_resolver)),
        read_timeout: Some(SILENCE),
        connect_timeout: Some(SILENCE),
        user_agent: concat!("forkd/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    })
}

/// Registries of this computer speak plain HTTP, as with other tools.
fn is_local(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host == "[::1]" || host.starts_with("127.")
}

/// What `docker login` keeps for this registry.
fn credentials(reference: &Reference, file: Option<&Path>) -> Result<RegistryAuth, OciError> {
    let Some(path) = file else { return Ok(RegistryAuth::Anonymous) };
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(RegistryAuth::Anonymous),
        other => other.map_err(|e| OciError::io("read", path.display(), e))?,
    };
    let registry = reference.resolve_registry();
    // Docker keeps those of its own registry under this name.
    let server = if registry == "index.docker.io" { "https://index.docker.io/v1/" } else { registry };
    match docker_credential::get_credential_from_reader(file, server) {
        Ok(DockerCredential::UsernamePassword(user, password)) => Ok(RegistryAuth::Basic(user, password)),
        Ok(DockerCredential::IdentityToken(token)) => Ok(RegistryAuth::Bearer(token)),
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(RegistryAuth::Anonymous),
        Err(e) => Err(OciError::io("take credentials from", path.display(), io::Error::other(e))),
    }
}

async fn blob(
    client: &Client,
    reference: &Reference,
    layer: &OciDescriptor,
    blobs: &Blobs,
    title: &str,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<PathBuf, OciError> {
    let refused = |reason: &str| OciError::refused(reference, title, reason);
    let hex = sha256_hex(&layer.digest).ok_or_else(|| refused("is named by no SHA-256 digest"))?;
    let size = u64::try_from(layer.size).ok().filter(|s| *s <= MAX_LAYER_BYTES);
    let size = size.ok_or_else(|| refused("has an impossible size"))?;
    if let Some(path) = blobs.find(hex, size) {
        progress(&format!("{title}: {} MiB, here already", size >> 20));
        return Ok(path);
    }
    let of_registry = |e| OciError::of_registry(reference, e);
    let mut stream = client.pull_blob_stream(reference, layer).await.map_err(of_registry)?;
    let mut incoming = blobs.begin()?;
    let mut told = 0;
    while let Some(bytes) = stream.next().await {
        let bytes = bytes.map_err(|e| OciError::io("fetch", title, e))?;
        if incoming.length() + bytes.len() as u64 > size {
            return Err(refused("is longer than its manifest says"));
        }
        incoming.write_all(&bytes).map_err(|e| OciError::io("write", title, e))?;
        if incoming.length() - told >= 8 << 20 {
            told = incoming.length();
            progress(&format!("{title}: {} of {} MiB", told >> 20, size >> 20));
        }
    }
    if incoming.length() != size || incoming.hex() != hex {
        return Err(refused("is not what its digest says"));
    }
    blobs.keep(incoming, hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_computer_is_spoken_to_without_tls() {
        for local in ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert!(is_local(local), "{local}");
        }
        for other in ["localhost.example", "docker.io", "10.0.0.1:5000", "1270.example"] {
            assert!(!is_local(other), "{other}");
        }
    }
}
