//! URLs of hubs, and of tags in them.

use std::path::PathBuf;

use forkd_protocol::names::Tag;
use url::Url;

use crate::HubError;

/// What kind of hub a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A folder.
    Folder(PathBuf),
    /// Behind a web server.
    Web,
    /// `s3://BUCKET/PREFIX`: bucket and prefix.
    Bucket(String, String),
}

/// Where a hub is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub(crate) url: String,
    pub(crate) kind: Kind,
}

impl Place {
    /// Reads `file:///PATH`, `https://HOST/PATH`, `http://HOST/PATH` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// It is no such URL, or names a user: keys come from the environment.
    pub fn parse(given: &str) -> Result<Self, HubError> {
        let bad = |reason: &str| HubError::Url { url: given.to_owned(), reason: reason.to_owned() };
        let url = Url::parse(given)
            .map_err(|_| bad("write file:///PATH, https://HOST/PATH or s3://BUCKET/PREFIX"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad(
                "it names a user; keys of a bucket come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has a query or a fragment"));
        }
        let host = || url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| bad("it names no host"));
        let kind = match url.scheme() {
            "file" => Kind::Folder(url.to_file_path().map_err(|()| bad("a folder is written file:///PATH"))?),
            "http" | "https" => host().map(|_| Kind::Web)?,
            "s3" => Kind::Bucket(host()?.to_owned(), url.path().trim_matches('/').to_owned()),
            _ => return Err(bad("it begins with file://, https://, http:// or s3://")),
        };
        Ok(Self { url: url.as_str().trim_end_matches('/').to_owned(), kind })
    }

    /// Reads the URL of a hub that is followed by a tag: `s3://BUCKET/PREFIX/TAG`.
    ///
    /// # Errors
    /// Those of [`Place::parse`], or the last part is no tag.
    pub fn with_tag(given: &str) -> Result<(Self, Tag), HubError> {
        let bad = |reason: String| HubError::Url { url: given.to_owned(), reason };
        let (hub, tag) = given
            .trim_end_matches('/')
            .rsplit_once('/')
            .ok_or_else(|| bad("write the URL of a hub, a slash and a tag".to_owned()))?;
        let tag = tag.parse().map_err(|e| bad(format!("its last part has to be a tag: {e}")))?;
        Ok((Self::parse(hub)?, tag))
    }

    /// The URL, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_written() {
        let kind = |url: &str| Place::parse(url).unwrap().kind;
        assert_eq!(kind("file:///srv/hub/"), Kind::Folder("/srv/hub".into()));
        assert_eq!(kind("https://host/a/b"), Kind::Web);
        assert_eq!(kind("s3://bucket"), Kind::Bucket("bucket".into(), String::new()));
        assert_eq!(kind("s3://bucket/a/b/"), Kind::Bucket("bucket".into(), "a/b".into()));
        assert_eq!(Place::parse("http://host/a/").unwrap().as_str(), "http://host/a");
        for bad in [
            "",
            "/srv/hub",
            "ftp://x/y",
            "s3://",
            "https://",
            "https://u:p@h/x",
            "file://host/x",
            "s3://b/x?y",
            "s3://b#t",
        ] {
            assert!(Place::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_last_part_is_the_tag() {
        let (hub, tag) = Place::with_tag("s3://bucket/hub/pynp-b").unwrap();
        assert_eq!((hub.as_str(), tag.as_str()), ("s3://bucket/hub", "pynp-b"));
        let (hub, tag) = Place::with_tag("s3://bucket/pynp-b").unwrap();
        assert_eq!((hub.as_str(), tag.as_str()), ("s3://bucket", "pynp-b"));
        assert_eq!(Place::with_tag("file:///srv/hub/t").unwrap().0.kind, Kind::Folder("/srv/hub".into()));
        for bad in ["pynp", "s3://bucket", "https://host/a.b", "https://host/hub/.."] {
            assert!(Place::with_tag(bad).is_err(), "{bad:?}");
        }
    }
}
