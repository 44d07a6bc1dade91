//! What a reference names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use oci_client::Reference;

use crate::OciError;

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A registry: `debian:bookworm`, `ghcr.io/owner/name@sha256:…`, `localhost:5000/app`.
    Registry(Reference),
    /// A file or folder of this disk: what `docker save` writes, or an image layout.
    Archive(PathBuf),
}

/// What other tools write before a path.
const TRANSPORTS: [&str; 4] = ["docker-archive:", "oci-archive:", "oci:", "file://"];

impl FromStr for Source {
    type Err = OciError;

    /// A path begins with `/`, `./` or `../`, or with the name of a transport (`oci-archive:`); all else is
    /// looked for in a registry.
    fn from_str(text: &str) -> Result<Self, OciError> {
        let path = TRANSPORTS.iter().find_map(|t| text.strip_prefix(t));
        if let Some(path) = path {
            return Ok(Self::Archive(PathBuf::from(path)));
        }
        if ["/", "./", "../"].iter().any(|start| text.starts_with(start)) {
            return Ok(Self::Archive(PathBuf::from(text)));
        }
        let name = text.strip_prefix("docker://").unwrap_or(text);
        let refused = |reason: String| OciError::Reference { reference: text.to_owned(), reason };
        name.parse().map(Self::Registry).map_err(|e: oci_client::ParseError| refused(e.to_string()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry(reference) => reference.fmt(f),
            Self::Archive(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match text.parse::<Source>() {
            Ok(Source::Registry(r)) => format!("registry {r}"),
            Ok(Source::Archive(p)) => format!("archive {}", p.display()),
            Err(e) => format!("{:?}", e.class()),
        }
    }

    #[test]
    fn paths_and_names_are_told_apart() {
        assert_eq!(parsed("debian:bookworm"), "registry docker.io/library/debian:bookworm");
        assert_eq!(parsed("localhost:5000/a/b"), "registry localhost:5000/a/b:latest");
        assert_eq!(parsed("docker://ghcr.io/o/n:1"), "registry ghcr.io/o/n:1");
        assert_eq!(parsed("./x.tar"), "archive ./x.tar");
        assert_eq!(parsed("/srv/layout"), "archive /srv/layout");
        assert_eq!(parsed("oci-archive:x.tar"), "archive x.tar");
        for wrong in ["", "a b", "x@sha256:short", "-a/../b:", "a\0b"] {
            assert_eq!(parsed(wrong), "Caller", "{wrong:?}");
        }
    }
}
