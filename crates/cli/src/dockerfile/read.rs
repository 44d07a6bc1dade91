//! Text into instructions.

use super::at_line;
use super::words::{is_name, list, split};
use crate::error::CliError;

/// Longest Dockerfile, bytes.
const LONGEST: usize = 1 << 20;
const KNOWN: &str = "FROM, RUN, COPY, ENV, WORKDIR, USER, CMD, ENTRYPOINT and ARG";

/// One instruction, and on which line it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) line: usize,
    pub(super) what: What,
}

/// Variables are not put in yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// What lies lowest.
    From(String),
    Run(Words),
    Copy {
        owner: Option<String>,
        from: Vec<String>,
        to: String,
    },
    /// Name and value.
    Env(Vec<(String, String)>),
    Workdir(String),
    User(String),
    Cmd(Words),
    Entrypoint(Words),
    /// Name, and value where nobody gives another one.
    Arg(String, Option<String>),
}

/// A program with its arguments, or a line for a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Words {
    List(Vec<String>),
    Shell(String),
}

impl Words {
    fn read(text: &str) -> Self {
        list(text).map_or_else(|| Self::Shell(text.to_owned()), Self::List)
    }

    /// As a process is started.
    pub(super) fn into_args(self) -> Vec<String> {
        match self {
            Self::List(words) => words,
            Self::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        }
    }
}

/// Reads a Dockerfile; what is not understood is refused.
pub(super) fn read(text: &str) -> Result<Vec<Instruction>, CliError> {
    if text.len() > LONGEST {
        return Err(CliError::usage(format!("the Dockerfile is longer than {LONGEST} bytes")));
    }
    let mut all = Vec::new();
    for (line, text) in lines(text)? {
        all.push(Instruction { line, what: instruction(&text).map_err(|why| at_line(line, why))? });
    }
    check_order(&all)?;
    Ok(all)
}

/// Lines that belong together as one, without comments, each with the number of its first.
fn lines(text: &str) -> Result<Vec<(usize, String)>, CliError> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line)) {
        let trimmed = line.trim();
        if trimmed.starts_with('#') {
            let directive = trimmed.trim_start_matches('#').trim().replace(' ', "").to_ascii_lowercase();
            if all.is_empty() && directive.starts_with("escape=") && directive != "escape=\\" {
                return Err(at_line(number, "no other escape than \\ is understood"));
            }
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        let (part, more) = trimmed.strip_suffix('\\').map_or((trimmed, false), |part| (part, true));
        match all.last_mut().filter(|_| goes_on) {
            Some((_, whole)) => whole.push_str(part),
            None => all.push((number, part.to_owned())),
        }
        goes_on = more;
    }
    match all.last().filter(|_| goes_on) {
        Some((number, _)) => Err(at_line(*number, "it goes on behind the end of the file")),
        None => Ok(all),
    }
}

fn instruction(text: &str) -> Result<What, String> {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (rest, keyword) = (rest.trim(), word.to_ascii_uppercase());
    if rest.is_empty() {
        return Err(format!("{keyword} has no arguments"));
    }
    Ok(match keyword.as_str() {
        "FROM" => What::From(from(rest)?),
        "RUN" => What::Run(Words::read(runnable(rest)?)),
        "COPY" => copy(rest)?,
        "ENV" => What::Env(env(rest)?),
        "WORKDIR" => What::Workdir(rest.to_owned()),
        "USER" => What::User(rest.to_owned()),
        "CMD" => What::Cmd(Words::read(rest)),
        "ENTRYPOINT" => What::Entrypoint(Words::read(rest)),
        "ARG" => arg(rest)?,
        _ => return Err(format!("{keyword} is not understood; known are {KNOWN}")),
    })
}

fn from(rest: &str) -> Result<String, String> {
    let words = split(rest);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        [flag, ..] if flag.starts_with("--") => Err(format!("FROM {flag} is not understood")),
        [image] => Ok(image.to_owned()),
        [image, r#as, _] if r#as.eq_ignore_ascii_case("as") => Ok(image.to_owned()),
        _ => Err("FROM is followed by an image and nothing else".to_owned()),
    }
}

fn runnable(rest: &str) -> Result<&str, String> {
    if rest.starts_with("--") {
        return Err(format!("RUN {} is not understood", split(rest).first().map_or("", String::as_str)));
    }
    // `<<<` and arithmetic shifts are the shell's business.
    let document = split(rest).iter().any(|word| {
        word.strip_prefix("<<").is_some_and(|name| {
            name.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic() || "'\"".contains(c))
        })
    });
    if document { Err("documents within a RUN (<<) are not understood".to_owned()) } else { Ok(rest) }
}

fn copy(rest: &str) -> Result<What, String> {
    let (mut owner, mut rest) = (None, rest);
    while rest.starts_with("--") {
        let (flag, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match flag.split_once('=') {
            Some(("--chown", given)) => owner = Some(given.to_owned()),
            _ => return Err(format!("COPY {flag} is not understood; known is --chown=USER[:GROUP]")),
        }
        rest = after.trim_start();
    }
    let mut words = list(rest).unwrap_or_else(|| split(rest));
    if words.iter().any(|word| word.starts_with("<<")) {
        return Err("documents within a COPY (<<) are not understood".to_owned());
    }
    let to = words.pop().filter(|_| !words.is_empty());
    let to = to.ok_or("COPY is followed by what and where to")?;
    if words.len() > 1 && !to.ends_with('/') {
        return Err("where several are copied to ends with a /".to_owned());
    }
    Ok(What::Copy { owner, from: words, to })
}

fn env(rest: &str) -> Result<Vec<(String, String)>, String> {
    let words = split(rest);
    let first = words.first().map_or("", String::as_str);
    if !first.contains('=') {
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        return Ok(vec![named(name, value.trim())?]);
    }
    let pair = |word: &String| {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not NAME=VALUE"))?;
        named(name, value)
    };
    words.iter().map(pair).collect()
}

fn named(name: &str, value: &str) -> Result<(String, String), String> {
    let fine = is_name(name).then(|| (name.to_owned(), value.to_owned()));
    fine.ok_or_else(|| format!("{name:?} is no name of a variable"))
}

fn arg(rest: &str) -> Result<What, String> {
    let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
    let (name, _) = named(name, "")?;
    Ok(What::Arg(name, value.map(str::to_owned)))
}

fn check_order(all: &[Instruction]) -> Result<(), CliError> {
    let is_from = |i: &&Instruction| matches!(i.what, What::From(_));
    let first = all.iter().find(|i| !matches!(i.what, What::Arg(..)));
    match first {
        None => return Err(CliError::usage("the Dockerfile has no FROM")),
        Some(first) if !is_from(&first) => {
            return Err(at_line(first.line, "FROM comes before everything but ARG"));
        }
        Some(_) => {}
    }
    match all.iter().filter(is_from).nth(1) {
        Some(second) => Err(at_line(second.line, "a build of several stages is not understood")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn instructions_have_the_number_of_their_first_line() {
        let text = "# syntax=docker/dockerfile:1\nARG V=12\n\nfrom debian:$V\nRUN a \\\n  # why\n  && b\n\
                    COPY --chown=1000:1000 x y z/\nCMD [\"p\", \"q\"]\nENV A=1 B=\"2 3\"\nENV C  d e\n";
        let all = read(text).unwrap();
        let lines: Vec<_> = all.iter().map(|i| i.line).collect();
        assert_eq!(lines, [2, 4, 5, 8, 9, 10, 11]);
        assert_eq!(all[1].what, What::From("debian:$V".into()));
        assert_eq!(all[2].what, What::Run(Words::Shell("a && b".into())));
        let copy = What::Copy {
            owner: Some("1000:1000".into()),
            from: vec!["x".into(), "y".into()],
            to: "z/".into(),
        };
        assert_eq!(all[3].what, copy);
        assert_eq!(all[4].what, What::Cmd(Words::List(vec!["p".into(), "q".into()])));
        assert_eq!(all[5].what, What::Env(vec![("A".into(), "1".into()), ("B".into(), "\"2 3\"".into())]));
        assert_eq!(all[6].what, What::Env(vec![("C".into(), "d e".into())]));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_its_line() {
        for (text, line, word) in [
            ("FROM a\nRUN b\nHEALTHCHECK x", 3, "HEALTHCHECK"),
            ("FROM a\nRUN --mount=type=cache b", 2, "--mount"),
            ("FROM a\nRUN cat <<EOF", 2, "<<"),
            ("FROM a\nCOPY --from=x a b", 2, "--from"),
            ("FROM a\nCOPY a", 2, "where to"),
            ("FROM a\nCOPY a b c", 2, "/"),
            ("FROM a\nENV A", 2, "name"),
            ("FROM a\nENV 1A=b", 2, "1A"),
            ("FROM a\nFROM b", 2, "stages"),
            ("FROM --platform=x a", 1, "--platform"),
            ("RUN a\nFROM b", 1, "FROM"),
            ("FROM a\nCMD", 2, "CMD"),
            ("FROM a\nRUN b \\", 2, "end"),
            ("# escape=`\nFROM a", 1, "escape"),
        ] {
            if word == "name" {
                // A variable without a value is one of the old form with an empty one.
                assert!(read(text).is_ok());
                continue;
            }
            let said = refused(text);
            assert!(said.contains(&format!("line {line} ")) && said.contains(word), "{text}: {said}");
        }
        assert!(refused("# nothing").contains("no FROM"));
        assert!(read("FROM a\nRUN test 1 -lt $((1<<2)) && grep x <<< y").is_ok());
    }
}
