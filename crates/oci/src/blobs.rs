//! A folder of blobs under their digests.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::OciError;

/// The hexadecimal digits of a `sha256:` digest; None where it is none.
pub(crate) fn sha256_hex(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:")?;
    let good = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    good.then_some(hex)
}

/// Lowercase hexadecimal SHA-256.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    digits(&Sha256::digest(bytes))
}

fn digits(hash: &[u8]) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

/// Blobs that were compared with their digests when they were put here.
#[derive(Debug)]
pub(crate) struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    /// Those below `cache`, which is made where it is missing.
    pub(crate) fn open(cache: &Path) -> Result<Self, OciError> {
        let folder = cache.join("oci").join("sha256");
        fs::create_dir_all(&folder).map_err(|e| OciError::io("create", folder.display(), e))?;
        Ok(Self { folder })
    }

    /// The blob of that digest and size, where it is here.
    pub(crate) fn find(&self, hex: &str, size: u64) -> Option<PathBuf> {
        let path = self.folder.join(hex);
        let whole = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.len() == size);
        whole.then_some(path)
    }

    /// A blob to write, removed where it is dropped before it was kept.
    pub(crate) fn begin(&self) -> Result<Incoming, OciError> {
        let file = tempfile::Builder::new().prefix("incoming-").tempfile_in(&self.folder);
        let file = file.map_err(|e| OciError::io("create a file in", self.folder.display(), e))?;
        Ok(Incoming { file, hash: Sha256::new(), length: 0 })
    }

    /// Gives what was written its name.
    pub(crate) fn keep(&self, incoming: Incoming, hex: &str) -> Result<PathBuf, OciError> {
        let path = self.folder.join(hex);
        let failed = |e: io::Error| OciError::io("write", path.display(), e);
        incoming.file.as_file().sync_all().map_err(failed)?;
        incoming.file.persist(&path).map_err(|e| failed(e.error))?;
        Ok(path)
    }
}

/// A blob on its way in, hashed while it is written.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: tempfile::NamedTempFile,
    hash: Sha256,
    length: u64,
}

impl Incoming {
    /// Bytes written so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Lowercase hexadecimal SHA-256 of what was written.
    pub(crate) fn hex(&self) -> String {
        digits(&self.hash.clone().finalize())
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_of_sha256_name_blobs() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(sha256_hex(&format!("sha256:{hex}")), Some(&hex[..]));
        let long = format!("sha256:{hex}0");
        let upper = format!("sha256:{}", hex.to_uppercase());
        for wrong in ["", "sha256:", "sha256:../../etc/passwd", &hex, &long, &upper, "sha512:00"] {
            assert_eq!(sha256_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_blob_is_found_once_it_is_whole() {
        let cache = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(cache.path()).unwrap();
        let mut incoming = blobs.begin().unwrap();
        incoming.write_all(b"abc").unwrap();
        let hex = incoming.hex();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(blobs.find(&hex, 3), None);
        let path = blobs.keep(incoming, &hex).unwrap();
        assert_eq!(blobs.find(&hex, 3), Some(path));
        assert_eq!(blobs.find(&hex, 4), None);
        drop(blobs.begin().unwrap());
        assert_eq!(fs::read_dir(cache.path().join("oci/sha256")).unwrap().count(), 1);
    }
}
