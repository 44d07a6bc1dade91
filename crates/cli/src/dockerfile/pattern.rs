//! Names with `*`, `?` and `**`, and the lines of a `.dockerignore`.

use std::io;
use std::path::Path;

/// Whether a pattern means a path; both with `/` between their parts.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let parts =
        |text: &'_ str| text.split('/').filter(|p| !p.is_empty() && *p != ".").map(str::to_owned).collect();
    let (pattern, path): (Vec<String>, Vec<String>) = (parts(pattern), parts(path));
    parts_match(&pattern, &path)
}

fn parts_match(pattern: &[String], path: &[String]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "**" => {
            parts_match(rest, path)
                || path.split_first().is_some_and(|(_, below)| parts_match(pattern, below))
        }
        (Some((first, rest)), Some((name, below))) => {
            let (first, name): (Vec<_>, Vec<_>) = (first.chars().collect(), name.chars().collect());
            name_matches(&first, &name) && parts_match(rest, below)
        }
        _ => false,
    }
}

/// Time grows with the product of both lengths, however many stars there are.
fn name_matches(pattern: &[char], name: &[char]) -> bool {
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for c in pattern {
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            next[at] = match c {
                '*' => reached[at] || (at > 0 && next[at - 1]),
                '?' => at > 0 && reached[at - 1],
                c => at > 0 && reached[at - 1] && name[at - 1] == *c,
            };
        }
        reached = next;
    }
    reached[name.len()]
}

/// What of a folder is left out.
#[derive(Debug, Default)]
pub(super) struct Ignored(Vec<(String, bool)>);

impl Ignored {
    /// As its `.dockerignore` says; nothing where it has none.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(folder.join(".dockerignore")) {
            Ok(text) => Ok(Self::read(&text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e),
        }
    }

    fn read(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &str| match line.strip_prefix('!') {
            Some(kept) => (kept.trim().to_owned(), false),
            None => (line.to_owned(), true),
        };
        Self(lines.map(rule).collect())
    }

    /// Whether a path below the folder is left out: what the last line says that means it or a folder that it lies in.
    pub(super) fn leaves_out(&self, path: &str) -> bool {
        let above: Vec<&str> = path.match_indices('/').map(|(at, _)| &path[..at]).chain([path]).collect();
        let says =
            |(pattern, out): &(String, bool)| above.iter().any(|p| matches(pattern, p)).then_some(*out);
        self.0.iter().filter_map(says).next_back().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_paths() {
        for (pattern, path) in [
            ("a", "a"),
            ("/a/./b", "a/b"),
            ("*.txt", "x.txt"),
            ("a?c*", "abcde"),
            ("**/x", "x"),
            ("**/x", "a/b/x"),
            ("a/**", "a/b/c"),
            ("*", "ä"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.txt", "a/x.txt"), ("a", "ab"), ("?", ""), ("a/*", "a/b/c"), ("**/x", "xy")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        let many = format!("{}b", "*a".repeat(2000));
        assert!(!matches(&many, &"a".repeat(2000)));
    }

    #[test]
    fn the_last_line_that_means_a_path_counts() {
        let ignored = Ignored::read("# no\n\n.git\n*.log\n!keep.log\nnode_modules\nsecret\n");
        for out in [".git", ".git/config", "a.log", "node_modules/x/y", "secret"] {
            assert!(ignored.leaves_out(out), "{out}");
        }
        for kept in ["keep.log", "src/a.log", "a", "secrets"] {
            assert!(!ignored.leaves_out(kept), "{kept}");
        }
    }
}
