//! A root file system from Debian's packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::ext4::make_ext4;
use super::sources::{Source, sources};
use super::tool::Tool;
use super::{MadeImage, MakeError, Progress};

/// Changes when the same request starts to give another file system.
const RECIPE: u32 = 1;

/// What to put into the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebianImage {
    /// `bookworm`, `trixie`, ...
    pub suite: String,
    /// On top of Debian's `minbase`.
    pub packages: Vec<String>,
    /// Size of the file system; the file is sparse. Grows where the content needs it.
    pub size_bytes: u64,
    /// Where the result is kept and found again.
    pub cache: PathBuf,
}

impl DebianImage {
    /// How the image was made, in words; equal requests have equal words.
    fn origin(&self) -> String {
        format!("debian {}: {}", self.suite, self.sorted_packages().join(", "))
    }

    fn sorted_packages(&self) -> Vec<String> {
        let mut packages = self.packages.clone();
        packages.sort();
        packages.dedup();
        packages
    }

    /// Names go to a program that would take patterns, paths and options as well.
    fn check(&self) -> Result<(), MakeError> {
        let plain = |name: &str, also: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && name.len() <= 128
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c))
        };
        if !plain(&self.suite, "-.") {
            return Err(MakeError::Caller(format!("{:?} is not the name of a Debian suite", self.suite)));
        }
        match self.packages.iter().find(|name| !plain(name, "+-.")) {
            Some(bad) => Err(MakeError::Caller(format!("{bad:?} is not the name of a Debian package"))),
            None => Ok(()),
        }
    }
}

/// Makes the image, or finds the one made before. Needs root: only root can give files their owners.
pub fn debian_image(image: &DebianImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    image.check()?;
    let origin = image.origin();
    let identity = format!("{RECIPE}\n{origin}\n{}", image.size_bytes);
    let key = blake3::hash(identity.as_bytes()).to_hex();
    let images = image.cache.join("images");
    let path = images.join(format!("{}-{}.ext4", image.suite, &key[..16]));
    if path.exists() {
        return Ok(MadeImage { path, origin, cached: true });
    }
    super::need_root("making an image")?;
    fs::create_dir_all(&images).map_err(|e| MakeError::io("create", &images, e))?;
    let work = super::work_folder(&images)?;
    let root = work.path().join("root");
    bootstrap(image, &root, progress)?;
    make_ext4(&root, &path, image.size_bytes, &identity, progress)?;
    Ok(MadeImage { path, origin, cached: false })
}

fn bootstrap(image: &DebianImage, root: &std::path::Path, progress: Progress<'_>) -> Result<(), MakeError> {
    progress(&format!("installing {} with {}", image.suite, image.packages.join(" ")));
    fs::create_dir(root).map_err(|e| MakeError::io("create", root, e))?;
    // apt fetches packages as a user of its own, who has to get in.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(root, open).map_err(|e| MakeError::io("open up", root, e))?;
    let mut tool = Tool::new("mmdebstrap", "mmdebstrap")
        .args(["--mode=root", "--variant=minbase", "--architectures=amd64", "--format=directory"])
        .env("SOURCE_DATE_EPOCH", "1600000000");
    if !image.packages.is_empty() {
        tool = tool.arg(format!("--include={}", image.sorted_packages().join(",")));
    }
    let mirrors = sources(&image.suite)?;
    tool = tool.arg(&image.suite).arg(root).args(mirrors.iter().map(Source::line));
    tool.run(&mut |line| {
        if let Some(line) = line.strip_prefix("I: ").filter(|line| !line.starts_with("automatically")) {
            progress(line);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_reach_the_package_tools() {
        let image = |suite: &str, package: &str| DebianImage {
            suite: suite.to_owned(),
            packages: vec![package.to_owned()],
            size_bytes: 1 << 30,
            cache: PathBuf::from("/nonexistent"),
        };
        assert!(image("bookworm", "libstdc++6").check().is_ok());
        for (suite, package) in [
            ("--help", "a"),
            ("../x", "a"),
            ("bookworm", "?essential"),
            ("bookworm", "./x.deb"),
            ("bookworm", "a b"),
            ("bookworm", "a,b"),
            ("bookworm", ""),
        ] {
            let refused = debian_image(&image(suite, package), &mut |_| {});
            assert!(matches!(refused, Err(MakeError::Caller(_))), "{suite} {package}");
        }
    }
}
