//! The configuration of `forkd serve`: a TOML file, every key of which docs/configuration.md tells. A key that is not
//! known is refused: a limit that is misspelt would not be one.

mod file;

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use file::File;

/// Where it is looked for where nobody names one.
pub(crate) const DEFAULT_FILE: &str = "/etc/forkd/forkd.toml";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigFileError {
    /// The file that was named cannot be read.
    #[error("the configuration {path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is no TOML, or has a key or value that means nothing.
    #[error("the configuration {path} is refused")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Which line and why.
        source: Box<toml::de::Error>,
    },
    /// A value is outside its range.
    #[error("the configuration {path} is refused: {key} must be {range}")]
    Range {
        /// The file.
        path: PathBuf,
        /// Which.
        key: &'static str,
        /// What it may be.
        range: &'static str,
    },
}

/// The file that was named; otherwise the usual one, where it is there.
pub(crate) fn load(named: Option<&Path>) -> Result<File, ConfigFileError> {
    let path = named.unwrap_or_else(|| Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => File::parse(&text, path),
        Err(e) if named.is_none() && e.kind() == io::ErrorKind::NotFound => Ok(File::default()),
        Err(source) => Err(ConfigFileError::Unreadable { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nobody_named_may_be_missing() {
        assert!(load(Some(Path::new("/nowhere at all"))).is_err());
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(load(Some(empty.path())).unwrap(), File::default());
    }

    #[test]
    fn every_key_is_documented_and_every_documented_key_is_known() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md"))
                .unwrap();
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let parsed = File::parse(example, Path::new("docs/configuration.md")).unwrap();
        assert_eq!(parsed, File::full(), "the example has all keys");
        for key in parsed.keys() {
            assert!(page.contains(&format!("`{key}`")), "{key} has no line");
        }
    }
}
