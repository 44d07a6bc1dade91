//! The bundle file: a tar whose first entry is the document and whose others are the objects.
//!
//! ```text
//!   forkd-bundle.json       the document
//!   objects/<hash>.zst      each object, compressed
//! ```
//!
//! Read as a stream: an entry of any other name or kind ends it, and nothing longer than the document says is kept.

use std::collections::HashSet;
use std::io::{self, Read, Write};

use forkd_protocol::digest::Digest;
use forkd_protocol::rest::{Bundle, MAX_BUNDLE_BYTES, longest_object};
use tar::EntryType;

use super::BundleError;
use super::document::Checked;
use crate::error::StoreError;
use crate::tarball::{ExtensionError, Extensions};

const DOCUMENT: &[u8] = b"forkd-bundle.json";
const OBJECTS: &[u8] = b"objects/";
const SUFFIX: &[u8] = b".zst";
/// Zeroes that a writer may pad the end with.
const MAX_PADDING: u64 = 1 << 20;
/// Entries that are no objects: folders, extension headers.
const MAX_OTHERS: usize = 4096;

/// Writes a bundle file.
pub struct BundleWriter<W: Write> {
    tar: tar::Builder<W>,
}

impl<W: Write> std::fmt::Debug for BundleWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BundleWriter")
    }
}

impl<W: Write> BundleWriter<W> {
    /// Begins with the document.
    pub fn new(out: W, document: &[u8]) -> io::Result<Self> {
        let mut writer = Self { tar: tar::Builder::new(out) };
        writer.entry(DOCUMENT, document)?;
        Ok(writer)
    }

    /// Adds an object as it travels.
    pub fn object(&mut self, hash: &Digest, compressed: &[u8]) -> io::Result<()> {
        self.entry(&[OBJECTS, hash.to_string().as_bytes(), SUFFIX].concat(), compressed)
    }

    /// Ends the file.
    pub fn finish(self) -> io::Result<W> {
        self.tar.into_inner()
    }

    fn entry(&mut self, name: &[u8], content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o444);
        header.set_entry_type(EntryType::Regular);
        self.tar.append_data(&mut header, String::from_utf8_lossy(name).as_ref(), content)
    }
}

/// What a bundle file consists of, in the order in which it comes.
#[derive(Debug)]
pub enum Part {
    /// The document, once and first.
    Document(Vec<u8>, Bundle),
    /// An object, compressed. Whether it is what its name says is for those to see who take it in.
    Object(Digest, Vec<u8>),
}

/// Reads a bundle file to its end and hands out what it consists of.
///
/// # Errors
/// Whatever is no bundle, as far as that can be told without unpacking objects; and those of `take`.
pub fn read_bundle<E: From<StoreError>>(
    from: impl Read,
    mut take: impl FnMut(Part) -> Result<(), E>,
) -> Result<(), E> {
    let mut archive = tar::Archive::new(from);
    let mut reader = Reader::default();
    let entries = archive.entries().map_err(broken)?.raw(true);
    for entry in entries {
        let mut entry = entry.map_err(broken)?;
        if let Some(part) = reader.part(&mut entry)? {
            take(part)?;
        }
    }
    let Some(checked) = &reader.checked else { return Err(refused("it holds no document").into()) };
    let lost = checked.objects.len() - reader.seen.len();
    if lost > 0 {
        return Err(refused(format!("it is cut off, or lacks {lost} of the objects that it names")).into());
    }
    Ok(check_end(archive.into_inner())?)
}

#[derive(Default)]
struct Reader {
    checked: Option<Checked>,
    seen: HashSet<Digest>,
    others: usize,
    extensions: Extensions,
}

impl Reader {
    fn part<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<Option<Part>, StoreError> {
        if self.extensions.take(entry).map_err(of_extension)? {
            return self.other();
        }
        let path = std::mem::take(&mut self.extensions).path;
        let path = path.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let name = path.strip_prefix(b"./").unwrap_or(&path);
        match entry.header().entry_type() {
            EntryType::Directory if matches!(name, b"" | b"." | b"objects" | b"objects/") => self.other(),
            EntryType::Regular | EntryType::Continuous => self.file(name, entry).map(Some),
            _ => Err(refused(format!("its entry {} is no plain file", shown(name)))),
        }
    }

    fn other(&mut self) -> Result<Option<Part>, StoreError> {
        self.others += 1;
        if self.others > MAX_OTHERS { Err(refused("it holds too many entries")) } else { Ok(None) }
    }

    fn file<R: Read>(&mut self, name: &[u8], entry: &mut tar::Entry<'_, R>) -> Result<Part, StoreError> {
        if name == DOCUMENT {
            if self.checked.is_some() {
                return Err(refused("its document comes twice"));
            }
            let text = content(entry, MAX_BUNDLE_BYTES as u64, name)?;
            let checked = Checked::read(&text)?;
            let bundle = checked.bundle.clone();
            self.checked = Some(checked);
            return Ok(Part::Document(text, bundle));
        }
        let unknown = || refused(format!("its entry {} is not one of a bundle", shown(name)));
        let hash = name.strip_prefix(OBJECTS).and_then(|name| name.strip_suffix(SUFFIX));
        let hash = hash.and_then(|hash| std::str::from_utf8(hash).ok()).ok_or_else(unknown)?;
        let hash: Digest = hash.parse().map_err(|_| unknown())?;
        let Some(checked) = &self.checked else {
            return Err(refused("it does not begin with its document"));
        };
        let Some(bytes) = checked.objects.get(&hash) else {
            return Err(refused(format!("its document does not name the object {hash}")));
        };
        if !self.seen.insert(hash) {
            return Err(refused(format!("the object {hash} comes twice")));
        }
        Ok(Part::Object(hash, content(entry, longest_object(*bytes), name)?))
    }
}

/// The whole content of an entry, unless it is longer than it may be.
fn content<R: Read>(entry: &mut tar::Entry<'_, R>, most: u64, name: &[u8]) -> Result<Vec<u8>, StoreError> {
    let bytes = entry.header().entry_size().map_err(broken)?;
    if bytes > most {
        return Err(refused(format!("its entry {} has {bytes} bytes; {most} are possible", shown(name))));
    }
    let mut content = Vec::new();
    entry.take(most).read_to_end(&mut content).map_err(broken)?;
    if content.len() as u64 != bytes {
        return Err(refused("it is cut off"));
    }
    Ok(content)
}

/// Behind the last entry there is nothing but zeroes.
fn check_end(mut rest: impl Read) -> Result<(), StoreError> {
    let mut buffer = vec![0; 64 << 10];
    let mut padding = 0;
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                padding += length as u64;
                if padding > MAX_PADDING || buffer[..length].iter().any(|byte| *byte != 0) {
                    return Err(refused("something follows behind its end"));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(broken(e)),
        }
    }
}

fn refused(reason: impl Into<String>) -> StoreError {
    BundleError::refused(reason).into()
}

/// The tar crate says with I/O errors what is wrong with an archive; those of the disk have a number.
fn broken(error: io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(_) => StoreError::io("read", "the bundle", error),
        None => refused(format!("it cannot be read: {error}")),
    }
}

fn of_extension(error: ExtensionError) -> StoreError {
    match error {
        ExtensionError::Refused(reason) => refused(format!("an extension header {reason}")),
        ExtensionError::Broken(e) => broken(e),
    }
}

fn shown(name: &[u8]) -> String {
    let name: String = String::from_utf8_lossy(name).chars().take(100).collect();
    format!("{name:?}")
}
