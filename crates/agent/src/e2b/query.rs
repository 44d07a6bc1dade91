//! The query of an address.

/// Names and values, decoded.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    /// The first value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// `%xx` and `+`; clients use both for a space. What is no escape stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped =
            text.get(at + 1..at + 3).filter(|hex| byte == b'%' && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        let query = Query::parse("path=%2Fa+b%20c%C3%A4&x&username=user&bad=%zz%4");
        assert_eq!(query.get("path"), Some("/a b cä"));
        assert_eq!((query.get("x"), query.get("username"), query.get("y")), (Some(""), Some("user"), None));
        assert_eq!(query.get("bad"), Some("%zz%4"));
    }
}
