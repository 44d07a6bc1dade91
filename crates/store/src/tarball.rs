//! Extension headers of tar archives (GNU's long names, pax records), read here and not by the tar crate, which
//! would take them at any length.

use std::io::{self, Read};

use tar::EntryType;

/// The longest extension header.
const MAX_EXTENSION: u64 = 1 << 20;

/// What extension headers say about the entry that follows them.
#[derive(Debug, Default)]
pub(crate) struct Extensions {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
}

/// Why an extension header is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtensionError {
    /// It says what is not supported, or is too long.
    #[error("extension header {0}")]
    Refused(&'static str),
    /// It cannot be read.
    #[error("extension header")]
    Broken(#[source] io::Error),
}

impl Extensions {
    /// Takes an entry in where it is an extension header; false where it is an entry of its own.
    pub(crate) fn take<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<bool, ExtensionError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(long_name(entry)?),
            EntryType::GNULongLink => self.link = Some(long_name(entry)?),
            EntryType::XHeader => self.pax(entry)?,
            EntryType::XGlobalHeader => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn pax<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), ExtensionError> {
        let content = short_content(entry)?;
        for record in tar::PaxExtensions::new(&content) {
            let record = record.map_err(ExtensionError::Broken)?;
            let key = record.key().map_err(|_| ExtensionError::Refused("has a key that is not text"))?;
            let value = record.value_bytes();
            let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            match key {
                "path" => self.path = Some(value.to_vec()),
                "linkpath" => self.link = Some(value.to_vec()),
                "uid" => self.uid = number(),
                "gid" => self.gid = number(),
                "size" => {
                    let reason = "overrides a size (files above 8 GiB are not supported)";
                    return Err(ExtensionError::Refused(reason));
                }
                _ if key.starts_with("GNU.sparse") => {
                    return Err(ExtensionError::Refused("describes a sparse file"));
                }
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        self.xattrs.push((name.to_owned(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

fn short_content<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, ExtensionError> {
    if entry.size() > MAX_EXTENSION {
        return Err(ExtensionError::Refused("is longer than 1 MiB"));
    }
    let mut content = Vec::new();
    entry.take(MAX_EXTENSION).read_to_end(&mut content).map_err(ExtensionError::Broken)?;
    Ok(content)
}

fn long_name<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, ExtensionError> {
    let mut name = short_content(entry)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}
