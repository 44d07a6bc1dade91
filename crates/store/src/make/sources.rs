//! Where Debian's packages come from: what this machine's apt is configured with.

use super::MakeError;
use super::tool::Tool;

/// Debian's keys on a Debian machine.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Names a mirror in place of what apt is configured with.
const OVERRIDE: &str = "FORKD_DEBIAN_MIRROR";

/// One suite on a mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    uri: String,
    suite: String,
}

impl Source {
    /// As a line of `sources.list`.
    pub(super) fn line(&self) -> String {
        format!("deb [arch=amd64 signed-by={KEYRING}] {} {} main", self.uri, self.suite)
    }
}

/// The sources of a suite: `FORKD_DEBIAN_MIRROR`; else the suite with its updates as this machine has it; else,
/// for a suite that this machine does not use, the mirror where it gets its own from.
pub(super) fn sources(suite: &str) -> Result<Vec<Source>, MakeError> {
    if let Ok(uri) = std::env::var(OVERRIDE) {
        return Ok(vec![Source { uri, suite: suite.to_owned() }]);
    }
    // Once with what the lists say of who made them, once as configured: a fresh machine has no lists.
    let listed = targets(&["--release-info"])?;
    let debian: Vec<_> = listed.iter().filter(|target| target.origin == "Debian").collect();
    let configured = if debian.is_empty() { targets(&["--no-release-info"])? } else { Vec::new() };
    let targets = if debian.is_empty() { configured.iter().collect() } else { debian };
    let codename = codename(&std::fs::read_to_string("/etc/os-release").unwrap_or_default());
    let chosen = choose(&targets, suite, codename.as_deref());
    if chosen.is_empty() { Err(MakeError::NoMirror) } else { Ok(chosen) }
}

/// A list of packages that apt is configured to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    suite: String,
    origin: String,
    uri: String,
}

fn targets(options: &[&str]) -> Result<Vec<Target>, MakeError> {
    let text = Tool::new("apt-get", "apt")
        .arg("indextargets")
        .args(options)
        .args(["--format", "$(COMPONENT)|$(RELEASE)|$(ORIGIN)|$(REPO_URI)", "Created-By: Packages"])
        .output()?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Target> {
    let target = |line: &str| match line.splitn(4, '|').collect::<Vec<_>>()[..] {
        // A disc in a drive serves nobody else.
        ["main", suite, origin, uri] if !uri.is_empty() && !uri.starts_with("cdrom:") => {
            Some(Target { suite: suite.to_owned(), origin: origin.to_owned(), uri: uri.to_owned() })
        }
        _ => None,
    };
    text.lines().filter_map(target).collect()
}

fn choose(targets: &[&Target], suite: &str, codename: Option<&str>) -> Vec<Source> {
    let of = |wanted: &str| targets.iter().find(|target| target.suite == wanted);
    let source = |uri: &str, suite: &str| Source { uri: uri.to_owned(), suite: suite.to_owned() };
    if let Some(base) = of(suite) {
        let updates = [format!("{suite}-updates"), format!("{suite}-security")];
        let updates = updates.iter().filter_map(|name| of(name).map(|target| source(&target.uri, name)));
        return std::iter::once(source(&base.uri, suite)).chain(updates).collect();
    }
    let own = codename.and_then(of).or_else(|| {
        // One that tracks `stable` and the like.
        let plain = |target: &&&Target| target.origin == "Debian" && !target.suite.contains('-');
        targets.iter().find(plain)
    });
    own.map(|target| source(&target.uri, suite)).into_iter().collect()
}

/// The release of a Debian machine.
fn codename(os_release: &str) -> Option<String> {
    let value = |key: &str| os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let debian = value("ID") == Some("debian");
    value("VERSION_CODENAME").filter(|_| debian).map(|name| name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
main|nodistro|. nodistro|https://other.example/node/
contrib|bookworm|Debian|http://wrong.example/
main|bookworm|Debian|http://mirror.example/debian/
main|bookworm|Debian|http://mirror.example/debian/
main|bookworm-updates|Debian|http://mirror.example/debian/
main|bookworm-security|Debian|http://mirror.example/security/
main|trixie|Debian|cdrom:[disc]/
";

    fn lines(text: &str, suite: &str, codename: Option<&str>) -> Vec<String> {
        let targets = parse(text);
        let sources = choose(&targets.iter().collect::<Vec<_>>(), suite, codename);
        sources.iter().map(|s| format!("{} {}", s.uri, s.suite)).collect()
    }

    #[test]
    fn a_suite_of_this_machine_comes_with_its_updates_and_any_other_from_the_same_mirror() {
        assert_eq!(
            lines(LISTED, "bookworm", Some("bookworm")),
            [
                "http://mirror.example/debian/ bookworm",
                "http://mirror.example/debian/ bookworm-updates",
                "http://mirror.example/security/ bookworm-security"
            ]
        );
        for suite in ["trixie", "bookworm-backports"] {
            let wanted = [format!("http://mirror.example/debian/ {suite}")];
            assert_eq!(lines(LISTED, suite, Some("bookworm")), wanted);
            assert_eq!(lines(LISTED, suite, None), wanted);
        }
        let unnamed = "main|bookworm|$(ORIGIN)|http://a.example/\n";
        assert_eq!(lines(unnamed, "trixie", Some("bookworm")), ["http://a.example/ trixie"]);
    }

    #[test]
    fn no_mirror_is_guessed() {
        assert!(lines("", "bookworm", Some("bookworm")).is_empty());
        assert!(lines("main|noble|$(ORIGIN)|http://a.example/\n", "bookworm", None).is_empty());
        assert!(lines("nonsense\n||\n", "bookworm", None).is_empty());
    }

    #[test]
    fn the_codename_is_that_of_debian_only() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=trixie\n").as_deref(), Some("trixie"));
        assert_eq!(codename("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(codename(""), None);
    }
}
