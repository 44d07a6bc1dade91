//! Arguments that are more than one word: read once, here.

use forkd_protocol::names::Tag;

/// `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyValue {
    key: String,
    value: String,
}

impl KeyValue {
    /// Key and value.
    pub(crate) fn into_pair(self) -> (String, String) {
        (self.key, self.value)
    }
}

/// Reads `KEY=VALUE`; `KEY` alone takes its value from this process's environment.
pub(crate) fn key_value(given: &str) -> Result<KeyValue, String> {
    let (key, value) = match given.split_once('=') {
        Some((key, value)) => (key, value.to_owned()),
        None => {
            (given, std::env::var(given).map_err(|_| format!("{given} is not set here; write KEY=VALUE"))?)
        }
    };
    if key.is_empty() || key.contains('\0') || value.contains('\0') {
        return Err("a key is not empty, and neither part has a NUL".to_owned());
    }
    Ok(KeyValue { key: key.to_owned(), value })
}

/// Escapes what has a meaning in a query or path segment.
pub(crate) fn percent(text: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The tag under which `forkd run` keeps the unwarmed snapshot of an image of this content. Nobody arrives at it
/// by chance, and no two images share one.
pub(crate) fn image_tag(image: &str, content: &str) -> Result<Tag, forkd_protocol::names::NameError> {
    // Dots are not for tags; prefix, 40 characters of the name and 16 of the hash fit.
    let name: String = image.chars().take(40).map(|c| if c == '.' { '_' } else { c }).collect();
    let hash = blake3::hash(format!("{image}\n{content}").as_bytes()).to_hex();
    format!("img-{name}-{}", &hash[..16]).parse()
}

/// The name of an image that was a container's and was given none: the end of its reference, and what it is.
pub(crate) fn container_name(reference: &str, origin: &str) -> String {
    let end = reference.rsplit('/').next().unwrap_or_default();
    let end = end.split('@').next().unwrap_or_default();
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let end: String = end.chars().take(40).map(allowed).collect();
    let hash = blake3::hash(origin.as_bytes()).to_hex();
    format!("oci-{}-{}", end.trim_matches('-'), &hash[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_containers_are_names_of_images() {
        use forkd_protocol::names::ImageName;
        let digest = format!("localhost:5000/a/App@sha256:{}", "0".repeat(64));
        for reference in ["docker.io/library/debian:bookworm", "./my app.tar", "-", &digest, &"x".repeat(300)]
        {
            let name = container_name(reference, "oci x sha256:00");
            assert!(name.parse::<ImageName>().is_ok(), "{name}");
        }
        assert_ne!(container_name("a", "oci a sha256:00"), container_name("a", "oci a sha256:01"));
        assert!(container_name("docker.io/library/debian:bookworm", "").starts_with("oci-debian-bookworm-"));
    }

    #[test]
    fn key_and_value_are_told_apart_at_the_first_sign() {
        assert_eq!(key_value("A=b=c").unwrap().into_pair(), ("A".into(), "b=c".into()));
        assert_eq!(key_value("A=").unwrap().into_pair(), ("A".into(), String::new()));
        for bad in ["", "=x", "FORKD_SURELY_NOT_SET", "A=\0"] {
            assert!(key_value(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_query_keeps_its_text() {
        assert_eq!(percent("debian bookworm: a,b&c"), "debian%20bookworm%3A%20a%2Cb%26c");
        assert_eq!(percent("é%"), "%C3%A9%25");
    }

    #[test]
    fn every_image_has_a_tag_of_its_own() {
        let tag = |image: &str, content: &str| image_tag(image, content).unwrap().to_string();
        assert!(tag("py3.11", "h").starts_with("img-py3_11-"));
        assert_eq!(tag("a.b", "h"), tag("a.b", "h"));
        assert_ne!(tag("a.b", "h"), tag("a_b", "h"));
        assert_ne!(tag("a.b", "h"), tag("a.b", "i"));
        let long = "x".repeat(64);
        assert_ne!(tag(&long, "h"), tag(&long[..63], "h"));
    }
}
