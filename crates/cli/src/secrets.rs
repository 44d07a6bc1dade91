//! Secrets as they are named on a command line, which every user of this computer can read: never with their values.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_protocol::names::SecretName;
use forkd_protocol::rest::{MAX_SECRET_BYTES, SecretValue, SecretValues};

/// A secret and its value, read from where the argument says. Not shown where it is printed.
#[derive(Clone)]
pub(crate) struct Secret {
    name: SecretName,
    value: SecretValue,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secret").field(&self.name).finish()
    }
}

/// Reads `NAME`, whose value is that variable of the environment, or `NAME=@FILE`.
pub(crate) fn secret(given: &str) -> Result<Secret, String> {
    let (name, from) = given.split_once('=').map_or((given, None), |(name, from)| (name, Some(from)));
    let name: SecretName = name.parse().map_err(|e: forkd_protocol::names::NameError| e.to_string())?;
    let bytes = match from.map(|from| from.strip_prefix('@')) {
        None => of_environment(name.as_str())?,
        Some(Some(path)) => of_file(path)?,
        // Not repeated: whoever wrote it so wrote the value.
        Some(None) => {
            return Err(format!(
                "the value of a secret does not belong on a command line, where others see it: write {name} (and set \
                 that variable) or {name}=@FILE"
            ));
        }
    };
    if bytes.is_empty() || bytes.len() > MAX_SECRET_BYTES {
        let length = bytes.len();
        return Err(format!("the secret {name} has {length} bytes; it is to have 1 to {MAX_SECRET_BYTES}"));
    }
    let value = String::from_utf8(bytes)
        .map_or_else(|e| SecretValue::Bytes { base64: STANDARD.encode(e.as_bytes()) }, SecretValue::Text);
    Ok(Secret { name, value })
}

/// As the API takes them.
pub(crate) fn values(secrets: &[Secret]) -> SecretValues {
    secrets.iter().map(|secret| (secret.name.to_string(), secret.value.clone())).collect()
}

fn of_environment(name: &str) -> Result<Vec<u8>, String> {
    use std::os::unix::ffi::OsStringExt;
    let value = std::env::var_os(name).map(OsStringExt::into_vec);
    value.ok_or_else(|| format!("the variable {name} is not set here; set it, or write {name}=@FILE"))
}

fn of_file(path: &str) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|e| format!("{path} cannot be opened: {e}"))?;
    let mut bytes = Vec::new();
    let most = MAX_SECRET_BYTES as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(|e| format!("{path} cannot be read: {e}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_from_a_file_or_the_environment_and_never_from_the_argument() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"hush\n").unwrap();
        let read = secret(&format!("KEY=@{}", file.path().display())).unwrap();
        assert_eq!(values(std::slice::from_ref(&read))["KEY"], SecretValue::Text("hush\n".into()));
        assert!(!format!("{read:?}").contains("hush"));
        std::fs::write(file.path(), [0, 255]).unwrap();
        let read = secret(&format!("KEY=@{}", file.path().display())).unwrap();
        assert_eq!(values(&[read])["KEY"], SecretValue::Bytes { base64: "AP8=".into() });
        assert!(values(&[secret("PATH").unwrap()]).contains_key("PATH"));
        let refused = secret("KEY=hush").unwrap_err();
        assert!(refused.contains("KEY=@FILE") && !refused.contains("hush"), "{refused}");
        std::fs::write(file.path(), "").unwrap();
        let empty = format!("KEY=@{}", file.path().display());
        for bad in [&empty, "KEY=@/no/such", "FORKD_SURELY_NOT_SET", "a/b", ""] {
            assert!(secret(bad).is_err(), "{bad:?}");
        }
    }
}
