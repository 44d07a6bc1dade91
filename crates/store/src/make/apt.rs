//! The machine's `apt-get` with folders, lists and sources of its own.

use std::fs;
use std::path::{Path, PathBuf};

use super::MakeError;
use super::sources::{KEYRING, sources};
use super::tool::Tool;

/// An apt that sees one suite of Debian, from this machine's mirror and through its proxy; nothing else of it.
#[derive(Debug)]
pub(super) struct PrivateApt {
    home: PathBuf,
}

impl PrivateApt {
    pub(super) fn new(home: &Path, suite: &str) -> Result<Self, MakeError> {
        if !Path::new(KEYRING).exists() {
            return Err(MakeError::ToolMissing { tool: KEYRING, package: "debian-archive-keyring" });
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder).map_err(|e| MakeError::io("create", &folder, e))?;
        }
        let list: String = sources(suite)?.iter().map(|source| source.line() + "\n").collect();
        for (name, text) in [("sources.list", list.as_str()), ("status", "")] {
            let path = home.join(name);
            fs::write(&path, text).map_err(|e| MakeError::io("write", &path, e))?;
        }
        Ok(Self { home: home.to_owned() })
    }

    fn tool(&self, name: &'static str) -> Tool {
        let at = |option: &str, path: &str| format!("{option}={}", self.home.join(path).display());
        let options = [
            at("Dir::Etc::SourceList", "sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            at("Dir::State::Lists", "lists"),
            at("Dir::State::status", "status"),
            at("Dir::Cache", "cache"),
            // The folders are ours alone; apt's own user could not enter them.
            "APT::Sandbox::User=root".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        options.iter().fold(Tool::new(name, "apt"), |tool, option| tool.arg("-o").arg(option)).dir(&self.home)
    }

    /// Fetches the list of packages. Warnings count: without its list a suite has no packages.
    pub(super) fn update(&self) -> Result<(), MakeError> {
        self.tool("apt-get").args(["update", "-qq", "--error-on=any"]).run(&mut |_| {})
    }

    /// The dependency of `package` that starts with `prefix`.
    pub(super) fn dependency(&self, package: &str, prefix: &str) -> Result<String, MakeError> {
        let text = self.tool("apt-cache").args(["depends", "--important", package]).output()?;
        let depends = |line: &str| line.trim().strip_prefix("Depends: ").map(str::to_owned);
        text.lines()
            .filter_map(depends)
            .find(|name| name.starts_with(prefix))
            .ok_or_else(|| MakeError::Caller(format!("{package} depends on no {prefix}*")))
    }

    /// Downloads and verifies a package; returns the file.
    pub(super) fn download(&self, package: &str) -> Result<PathBuf, MakeError> {
        self.tool("apt-get").args(["download", "-qq", package]).run(&mut |_| {})?;
        let entries = fs::read_dir(&self.home).map_err(|e| MakeError::io("list", &self.home, e))?;
        let is_deb = |path: &PathBuf| path.extension().is_some_and(|e| e == "deb");
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(is_deb)
            .ok_or_else(|| MakeError::Caller(format!("apt-get downloaded no {package}")))
    }
}
