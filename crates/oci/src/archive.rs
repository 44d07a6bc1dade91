//! Images in files: what `docker save` writes, and image layouts (OCI image specification, "Image Layout"),
//! as a tar archive or as a folder.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use oci_client::client::linux_amd64_resolver;
use oci_client::manifest::{OciDescriptor, OciImageIndex, OciImageManifest, OciManifest};
use serde::Deserialize;

use crate::blobs::{Blobs, Incoming, hex_of, sha256_hex};
use crate::{ContainerImage, MAX_DOCUMENT_BYTES, MAX_LAYER_BYTES, MAX_LAYERS, OciError, config};

/// Most files of an archive.
const MAX_MEMBERS: usize = 10_000;
/// Indices that name indices, at most.
const MAX_INDICES: usize = 3;

/// Reads an image and puts its layers into `cache`.
pub(crate) fn read(path: &Path, cache: &Path) -> Result<ContainerImage, OciError> {
    let archive = Archive::open(path)?;
    let blobs = Blobs::open(cache)?;
    if archive.has("index.json") { archive.layout(&blobs) } else { archive.docker(&blobs) }
}

/// An entry of docker's `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// Named files, wherever they are.
#[derive(Debug)]
struct Archive {
    name: String,
    members: Members,
}

#[derive(Debug)]
enum Members {
    Folder(PathBuf),
    /// A tar archive, and where the content of each file lies in it.
    Tar(File, HashMap<String, (u64, u64)>),
}

impl Archive {
    fn open(path: &Path) -> Result<Self, OciError> {
        let name = path.display().to_string();
        let failed = |e: io::Error| OciError::io("read", path.display(), e);
        if fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(Self { name, members: Members::Folder(path.to_owned()) });
        }
        let file = File::open(path).map_err(failed)?;
        let members = index(&file).map_err(|e| OciError::refused(&name, "the archive", e))?;
        Ok(Self { name, members: Members::Tar(file, members) })
    }

    fn has(&self, member: &str) -> bool {
        match &self.members {
            Members::Folder(folder) => folder.join(member).is_file(),
            Members::Tar(_, members) => members.contains_key(member),
        }
    }

    fn refused(&self, what: &str, reason: impl std::fmt::Display) -> OciError {
        OciError::refused(&self.name, what, reason)
    }

    /// The content of a file, and its length.
    fn member(&self, member: &str) -> Result<(Box<dyn Read + '_>, u64), OciError> {
        let plain = member.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !plain {
            return Err(self.refused(member, "is no name of a file in it"));
        }
        match &self.members {
            Members::Folder(folder) => {
                let path = folder.join(member);
                let failed = |e: io::Error| OciError::io("read", path.display(), e);
                let file = File::open(&path).map_err(failed)?;
                let length = file.metadata().map_err(failed)?.len();
                Ok((Box::new(file), length))
            }
            Members::Tar(file, members) => {
                let found = members.get(member).ok_or_else(|| self.refused(member, "is missing"))?;
                let (offset, length) = *found;
                Ok((Box::new(Part { file, offset, left: length }), length))
            }
        }
    }

    fn document(&self, member: &str) -> Result<Vec<u8>, OciError> {
        let (content, length) = self.member(member)?;
        if length > MAX_DOCUMENT_BYTES {
            return Err(self.refused(member, "is larger than 8 MiB"));
        }
        let mut bytes = Vec::new();
        let read = content.take(MAX_DOCUMENT_BYTES).read_to_end(&mut bytes);
        read.map_err(|e| OciError::io("read", member, e))?;
        Ok(bytes)
    }

    fn json<T: serde::de::DeserializeOwned>(&self, member: &str) -> Result<T, OciError> {
        let bytes = self.document(member)?;
        serde_json::from_slice(&bytes).map_err(|e| self.refused(member, format!("cannot be read: {e}")))
    }

    /// A blob of an image layout that is a document, compared with its digest.
    fn blob_document(&self, digest: &str) -> Result<Vec<u8>, OciError> {
        let hex =
            sha256_hex(digest).ok_or_else(|| self.refused("a blob", "is named by no SHA-256 digest"))?;
        let bytes = self.document(&format!("blobs/sha256/{hex}"))?;
        if hex_of(&bytes) != hex {
            return Err(self.refused(digest, "is not what its digest says"));
        }
        Ok(bytes)
    }

    fn layout(&self, blobs: &Blobs) -> Result<ContainerImage, OciError> {
        let (manifest, digest) = self.manifest()?;
        let config = config::parse(&self.name, &self.blob_document(&manifest.config.digest)?)?;
        self.check_count(config.diff_ids.len(), manifest.layers.len())?;
        let layers = manifest.layers.iter().map(|layer| self.blob(layer, blobs)).collect::<Result<_, _>>()?;
        let origin = format!("oci {} {digest}", self.file_name());
        Ok(ContainerImage { origin, layers, settings: config.settings })
    }

    /// The one manifest for this platform, through indices that name indices.
    fn manifest(&self) -> Result<(OciImageManifest, String), OciError> {
        let mut index: OciImageIndex = self.json("index.json")?;
        for _ in 0..MAX_INDICES {
            let digest = self.pick(&index)?;
            let bytes = self.blob_document(&digest)?;
            let read = serde_json::from_slice(&bytes);
            match read.map_err(|e| self.refused(&digest, format!("cannot be read: {e}")))? {
                OciManifest::Image(manifest) => return Ok((manifest, digest)),
                OciManifest::ImageIndex(next) => index = next,
            }
        }
        Err(self.refused("its index", "names indices that name indices"))
    }

    fn pick(&self, index: &OciImageIndex) -> Result<String, OciError> {
        if let Some(digest) = linux_amd64_resolver(&index.manifests) {
            return Ok(digest);
        }
        match &index.manifests[..] {
            // Tools leave the platform out where there is one image.
            [only] if only.platform.is_none() => Ok(only.digest.clone()),
            [] => Err(self.refused("its index", "names no image")),
            entries if entries.iter().all(|e| e.platform.is_none()) => {
                Err(self.refused("its index", "names several images; save one alone"))
            }
            entries => {
                let platforms = entries.iter().filter_map(|e| e.platform.as_ref());
                let platforms: Vec<_> =
                    platforms.take(8).map(|p| format!("{}/{}", p.os, p.architecture)).collect();
                Err(OciError::Platform { image: self.name.clone(), platforms: platforms.join(", ") })
            }
        }
    }

    fn blob(&self, layer: &OciDescriptor, blobs: &Blobs) -> Result<PathBuf, OciError> {
        let hex = sha256_hex(&layer.digest);
        let hex = hex.ok_or_else(|| self.refused("a layer", "is named by no SHA-256 digest"))?;
        let member = format!("blobs/sha256/{hex}");
        let incoming = self.copy(&member, blobs)?;
        if incoming.hex() != hex {
            return Err(self.refused(&member, "is not what its digest says"));
        }
        blobs.keep(incoming, hex)
    }

    fn copy(&self, member: &str, blobs: &Blobs) -> Result<Incoming, OciError> {
        let (content, length) = self.member(member)?;
        if length > MAX_LAYER_BYTES {
            return Err(self.refused(member, "is larger than 64 GiB"));
        }
        let mut incoming = blobs.begin()?;
        io::copy(&mut content.take(length), &mut incoming).map_err(|e| OciError::io("copy", member, e))?;
        if incoming.length() != length {
            return Err(self.refused(member, "is cut off"));
        }
        Ok(incoming)
    }

    fn docker(&self, blobs: &Blobs) -> Result<ContainerImage, OciError> {
        if !self.has("manifest.json") {
            let reason = "is no container image: it has neither index.json nor manifest.json; \
                          a plain root file system is taken by `forkd image import`";
            return Err(self.refused("the archive", reason));
        }
        let mut saved: Vec<Saved> = self.json("manifest.json")?;
        let (Some(image), true) = (saved.pop(), saved.is_empty()) else {
            return Err(self.refused("manifest.json", "does not name exactly one image; save one alone"));
        };
        let config = config::parse(&self.name, &self.document(&image.config)?)?;
        self.check_count(config.diff_ids.len(), image.layers.len())?;
        let mut layers = Vec::new();
        for (member, diff_id) in image.layers.iter().zip(&config.diff_ids) {
            layers.push(self.saved_layer(member, diff_id, blobs)?);
        }
        let origin = format!("oci {}", self.file_name());
        Ok(ContainerImage { origin, layers, settings: config.settings })
    }

    /// A layer that docker saved is named by what it is when unpacked, and mostly lies there unpacked.
    fn saved_layer(&self, member: &str, diff_id: &str, blobs: &Blobs) -> Result<PathBuf, OciError> {
        let incoming = self.copy(member, blobs)?;
        let hex = incoming.hex();
        let (content, _) = self.member(member)?;
        if !is_compressed(content).map_err(|e| OciError::io("read", member, e))?
            && sha256_hex(diff_id) != Some(&hex)
        {
            return Err(self.refused(member, "is not what its digest says"));
        }
        blobs.keep(incoming, &hex)
    }

    fn check_count(&self, named: usize, there: usize) -> Result<(), OciError> {
        if named == there && there <= MAX_LAYERS {
            return Ok(());
        }
        Err(self.refused("its manifest", "and its configuration differ in their layers"))
    }

    fn file_name(&self) -> String {
        Path::new(&self.name).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn is_compressed(mut content: impl Read) -> io::Result<bool> {
    let mut start = [0; 4];
    content.read_exact(&mut start)?;
    Ok(start.starts_with(&[0x1f, 0x8b])
        || start == [0x28, 0xb5, 0x2f, 0xfd]
        || start.starts_with(&[0xfd, b'7']))
}

/// Where the content of each regular file of a tar archive lies: offset and length.
fn index(file: &File) -> io::Result<HashMap<String, (u64, u64)>> {
    let mut reader = file;
    let length = reader.seek(SeekFrom::End(0))?;
    reader.rewind()?;
    let mut archive = tar::Archive::new(reader);
    let mut members = HashMap::new();
    let broken = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| broken("has a name that is no text"))?;
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        let (offset, size) = (entry.raw_file_position(), entry.size());
        if offset.checked_add(size).is_none_or(|end| end > length) {
            return Err(broken("is cut off"));
        }
        if members.len() == MAX_MEMBERS {
            return Err(broken("has more than ten thousand files"));
        }
        if members.insert(name, (offset, size)).is_some() {
            return Err(broken("has a file twice"));
        }
    }
    Ok(members)
}

/// A stretch of a file.
#[derive(Debug)]
struct Part<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
