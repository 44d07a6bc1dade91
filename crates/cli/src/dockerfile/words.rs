//! Words of a Dockerfile: quotes, escapes, variables, lists.

use std::collections::BTreeMap;

/// Variables by name.
pub(super) type Variables = BTreeMap<String, String>;

/// Splits at white space that is neither quoted nor escaped. Quotes and escapes stay, for [`expand`].
pub(super) fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut chars) = (Vec::new(), String::new(), None, text.chars());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => {
                word.push(c);
                word.extend(chars.next());
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Puts the values of variables in, and takes quotes and escapes away.
pub(super) fn expand(text: &str, variables: &Variables) -> Result<String, String> {
    let (mut out, mut quote, mut rest) = (String::new(), None, text);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => {
                let escaped = rest.chars().next();
                rest = &rest[escaped.map_or(0, char::len_utf8)..];
                // Within double quotes a backslash escapes only what means something there.
                if quote.is_some() && !matches!(escaped, Some('"' | '\\' | '$')) {
                    out.push('\\');
                }
                out.extend(escaped);
            }
            (None | Some('"'), '$') => {
                let (value, after) = variable(rest, variables)?;
                out.push_str(&value);
                rest = after;
            }
            _ => out.push(c),
        }
    }
    match quote {
        None => Ok(out),
        Some(open) => Err(format!("a {open} is not closed")),
    }
}

/// The value of what follows a `$`, and the rest.
fn variable<'a>(text: &'a str, variables: &Variables) -> Result<(String, &'a str), String> {
    let value = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let Some(braced) = text.strip_prefix('{') else {
        let end = text.find(|c: char| !is_of_name(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        // A dollar on its own.
        let found = if name.is_empty() { Some("$".to_owned()) } else { value(name) };
        return Ok((found.unwrap_or_default(), rest));
    };
    let (inside, rest) = braced.split_once('}').ok_or("a ${ is not closed")?;
    let end = inside.find(|c: char| !is_of_name(c)).unwrap_or(inside.len());
    let (name, how) = inside.split_at(end);
    if name.is_empty() {
        return Err(format!("${{{inside}}} names no variable"));
    }
    let found = value(name);
    let found = match (how.get(..2), how) {
        (_, "") => found.unwrap_or_default(),
        (Some(":-"), _) => found.unwrap_or_else(|| how[2..].to_owned()),
        (Some(":+"), _) => found.map(|_| how[2..].to_owned()).unwrap_or_default(),
        _ => {
            return Err(format!(
                "${{{inside}}} is not understood: ${{NAME}}, ${{NAME:-else}}, ${{NAME:+then}}"
            ));
        }
    };
    Ok((found, rest))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether this is the name of a variable.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_name) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// A list of texts as JSON has it; none where it is not written as one.
pub(super) fn list(text: &str) -> Option<Vec<String>> {
    text.trim_start().starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        [("A".to_owned(), "1".to_owned()), ("EMPTY".into(), String::new())].into()
    }

    #[test]
    fn variables_quotes_and_escapes() {
        for (text, expected) in [
            ("$A${A}b", "11b"),
            ("\"x $A\"'$A'", "x 1$A"),
            ("\\$A $", "$A $"),
            ("${NONE:-d}${EMPTY:-e}${A:-f}", "de1"),
            ("${A:+t}${NONE:+t}", "t"),
            ("$NONE.", "."),
            ("a\\ b \"c\\\"d\\n\"", "a b c\"d\\n"),
            ("ünï$A", "ünï1"),
        ] {
            assert_eq!(expand(text, &variables()).as_deref(), Ok(expected), "{text}");
        }
        for bad in ["${A", "${}", "${A%x}", "\"x", "'"] {
            assert!(expand(bad, &variables()).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_and_lists() {
        assert_eq!(split("a  'b c' d\\ e \"f g\"h"), ["a", "'b c'", "d\\ e", "\"f g\"h"]);
        assert_eq!(list(r#"["a", "b c"]"#), Some(vec!["a".into(), "b c".into()]));
        assert_eq!(list("[ -f x ] && y"), None);
        assert_eq!(list("echo"), None);
        assert!(is_name("A_1") && !is_name("1A") && !is_name("") && !is_name("a-b"));
    }
}
