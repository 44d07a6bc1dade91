//! Secrets of the workload: files in memory, for as long as the workload runs.
//!
//! They are emptied when the workload stands still for a snapshot and filled again before it runs on: in place, so that
//! whoever has one open, or mapped, does not notice. What is not given again by then is removed. The agent keeps no
//! value itself, and its memory is overwritten when it is freed (`main.rs`).

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forkd_protocol::guest::{GuestSecret, SECRETS_FOLDER};
use forkd_protocol::names::SecretName;
use nix::mount::{MsFlags, mount};
use rustix::fs::OFlags;

/// What the file system takes, and how many files: the folder is the workload's to fill up, not the guest's memory.
const ROOM: &str = "mode=0755,size=8m,nr_inodes=1k";
/// What overwrites a value, at a time.
const ZEROES: [u8; 4096] = [0; 4096];
/// A secret is read by its owner, and written by the agent alone.
const MODE: u32 = 0o400;

/// Whose the files are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The folder of the secrets.
#[derive(Debug)]
pub(crate) struct Secrets {
    folder: PathBuf,
    /// It is to be a file system of its own.
    mounted: bool,
}

impl Secrets {
    /// Those of a guest.
    pub(crate) fn of_guest() -> Self {
        Self { folder: SECRETS_FOLDER.into(), mounted: true }
    }

    /// Writes them, and leaves others as they are.
    pub(crate) fn give(&self, secrets: &[GuestSecret], owner: Owner) -> io::Result<()> {
        if secrets.is_empty() {
            return Ok(());
        }
        self.prepare()?;
        secrets.iter().try_for_each(|secret| self.write(secret, owner))
    }

    /// Writes those that are not there. Others are being read, maybe, and stay as they are.
    pub(crate) fn complete(&self, secrets: &[GuestSecret], owner: Owner) -> io::Result<()> {
        let is_missing = |secret: &&GuestSecret| !self.folder.join(&secret.name).exists();
        self.give(&secrets.iter().filter(is_missing).cloned().collect::<Vec<_>>(), owner)
    }

    /// The workload is about to run, and has these and no others.
    pub(crate) fn replace(&self, secrets: &[GuestSecret], owner: Owner) -> io::Result<()> {
        let given = self.give(secrets, owner);
        // Also where giving failed: a file that is empty is no secret.
        for entry in self.files()? {
            if entry.metadata()?.len() == 0 {
                fs::remove_file(entry.path())?;
            }
        }
        given
    }

    /// Overwrites and empties all of them.
    pub(crate) fn wipe(&self) -> io::Result<()> {
        self.files()?.iter().try_for_each(|entry| wipe(&entry.path()))
    }

    fn write(&self, secret: &GuestSecret, owner: Owner) -> io::Result<()> {
        let wrong = |e| io::Error::new(io::ErrorKind::InvalidInput, e);
        let name: SecretName = secret.name.parse().map_err(wrong)?;
        let value = BASE64.decode(&secret.value_base64).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("the value of secret {name} is no base64"))
        })?;
        let path = self.folder.join(name.as_str());
        let mut file = open(&path, true)?;
        fchown(&file, Some(owner.uid), Some(owner.gid))?;
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        file.set_len(0)?;
        file.write_all(&value)
    }

    fn prepare(&self) -> io::Result<()> {
        match fs::create_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let metadata = fs::symlink_metadata(&self.folder)?;
        if !metadata.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let outside = self.folder.parent().unwrap_or(Path::new("/"));
        if !self.mounted || metadata.dev() != fs::metadata(outside)?.dev() {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let put = |options: &str| mount(Some("tmpfs"), &self.folder, Some("tmpfs"), flags, Some(options));
        // Kernels before 6.4 do not know it; guests have no swap unless they make some.
        put(&format!("{ROOM},noswap")).or_else(|_| put(ROOM)).map_err(io::Error::from)
    }

    /// Plain files, whoever made them.
    fn files(&self) -> io::Result<Vec<DirEntry>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let plain = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
        entries.filter(|entry| entry.as_ref().map_or(true, plain)).collect()
    }
}

fn wipe(path: &Path) -> io::Result<()> {
    let mut file = open(path, false)?;
    let mut left = file.metadata()?.len();
    file.rewind()?;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(ZEROES.len()).min(ZEROES.len());
        file.write_all(&ZEROES[..part])?;
        left -= part as u64;
    }
    file.set_len(0)
}

/// A plain file and nothing that leads elsewhere.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().write(true).create(create).mode(MODE).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn here() -> (tempfile::TempDir, Secrets, Owner) {
        let tmp = tempfile::tempdir().unwrap();
        let secrets = Secrets { folder: tmp.path().join("secrets"), mounted: false };
        let mine = fs::metadata(tmp.path()).unwrap();
        (tmp, secrets, Owner { uid: mine.uid(), gid: mine.gid() })
    }

    fn secret(name: &str, value: &[u8]) -> GuestSecret {
        GuestSecret { name: name.to_owned(), value_base64: BASE64.encode(value) }
    }

    #[test]
    fn given_wiped_and_given_again_they_are_the_same_files() {
        let (_tmp, secrets, owner) = here();
        secrets.wipe().unwrap();
        secrets.replace(&[], owner).unwrap();
        let all = [secret("KEY", b"\0binary\xff"), secret("long", &[7; 10_000])];
        secrets.give(&all, owner).unwrap();
        let path = secrets.folder.join("KEY");
        let before = fs::metadata(&path).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), before.mode() & 0o7777),
            (&b"\0binary\xff"[..], MODE)
        );
        let mut open = File::open(&path).unwrap();
        secrets.wipe().unwrap();
        let mut seen = Vec::new();
        open.read_to_end(&mut seen).unwrap();
        assert!(seen.is_empty() && fs::read(secrets.folder.join("long")).unwrap().is_empty());
        secrets.replace(&all, owner).unwrap();
        open.read_to_end(&mut seen).unwrap();
        assert_eq!(
            (seen.as_slice(), fs::metadata(&path).unwrap().ino()),
            (&b"\0binary\xff"[..], before.ino())
        );
    }

    #[test]
    fn what_is_not_given_again_is_gone() {
        let (_tmp, secrets, owner) = here();
        secrets.give(&[secret("a", b"1"), secret("b", b"2")], owner).unwrap();
        secrets.wipe().unwrap();
        secrets.replace(&[secret("b", b"3")], owner).unwrap();
        assert!(!secrets.folder.join("a").exists());
        assert_eq!(fs::read(secrets.folder.join("b")).unwrap(), b"3");
        secrets.complete(&[secret("a", b"4"), secret("b", b"5")], owner).unwrap();
        let all = ["a", "b"].map(|name| fs::read(secrets.folder.join(name)).unwrap());
        assert_eq!(all, [b"4", b"3"]);
    }

    #[test]
    fn names_that_lead_elsewhere_and_links_are_refused() {
        let (tmp, secrets, owner) = here();
        for bad in ["", "..", "../x", "a/b", "/etc/passwd"] {
            assert!(secrets.give(&[secret(bad, b"x")], owner).is_err(), "{bad:?}");
        }
        let outside = tmp.path().join("outside");
        fs::write(&outside, "mine").unwrap();
        std::os::unix::fs::symlink(&outside, secrets.folder.join("link")).unwrap();
        assert!(secrets.give(&[secret("link", b"x")], owner).is_err());
        secrets.wipe().unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        let no_base64 = GuestSecret { name: "a".into(), value_base64: "%".into() };
        assert!(!secrets.give(&[no_base64], owner).unwrap_err().to_string().contains('%'));
    }
}
