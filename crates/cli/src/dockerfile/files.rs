//! What a COPY takes out of the context, as an archive that is the same whenever the files are.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::pattern::{Ignored, matches};
use crate::error::CliError;

/// Deepest folders.
const DEEPEST: usize = 256;

/// An archive, and what its content hashes to.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) archive: File,
    pub(super) hash: String,
    /// The folder in the image below which it is unpacked.
    pub(super) folder: String,
}

/// The folder that files are copied from.
#[derive(Debug)]
pub(super) struct Context {
    folder: PathBuf,
    ignored: Ignored,
}

impl Context {
    pub(super) fn open(folder: &Path) -> Result<Self, CliError> {
        let failed = |e| CliError::io(format!("reading the context {}", folder.display()), e);
        let folder = fs::canonicalize(folder).map_err(failed)?;
        Ok(Self { ignored: Ignored::of(&folder).map_err(failed)?, folder })
    }

    /// Packs what was named. Blocks.
    ///
    /// # Errors
    /// Nothing is there of a name, a name leads out of the context, or something cannot be read.
    pub(super) fn pack(&self, from: &[String], to: &str) -> Result<Packed, String> {
        let mut found = Vec::new();
        for name in from {
            let of_it = self.find(name)?;
            if of_it.is_empty() {
                return Err(format!("{name} is not in the context"));
            }
            found.extend(of_it);
        }
        let into_folder = to.ends_with('/');
        if found.len() > 1 && !into_folder {
            return Err(format!("several files match, so {to} has to end with a /"));
        }
        // A file that is called anew lies in the folder of its new name.
        let (folder, renamed) = match to.rsplit_once('/').filter(|_| !into_folder) {
            Some((folder, name)) => (if folder.is_empty() { "/" } else { folder }, Some(name)),
            None => (to, None),
        };
        let mut packing = Packing::new(self).map_err(|e| e.to_string())?;
        let mut whole = false;
        for path in &found {
            whole |= self.folder.join(path).is_dir();
            packing.add(path, renamed).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        }
        let folder = if whole && !into_folder { to } else { folder };
        packing.finish(folder).map_err(|e| e.to_string())
    }

    /// Paths below the folder that a name means.
    fn find(&self, name: &str) -> Result<Vec<PathBuf>, String> {
        let clean: PathBuf =
            Path::new(name).components().filter(|c| matches!(c, Component::Normal(_))).collect();
        if Path::new(name).components().any(|c| c == Component::ParentDir) {
            return Err(format!("{name} leads out of the context"));
        }
        if !name.contains(['*', '?']) {
            let there = fs::symlink_metadata(self.folder.join(&clean)).is_ok();
            let kept = clean.as_os_str().is_empty() || !self.ignored.leaves_out(&clean.to_string_lossy());
            self.stays_inside(&clean)?;
            return Ok(if there && kept { vec![clean] } else { Vec::new() });
        }
        let parent = clean.parent().unwrap_or(Path::new("")).to_owned();
        if parent.to_string_lossy().contains(['*', '?']) {
            return Err(format!("{name}: only the last part of a name may have * or ?"));
        }
        self.stays_inside(&parent)?;
        let pattern = clean.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in fs::read_dir(self.folder.join(&parent)).into_iter().flatten().flatten() {
            let (own, path) =
                (entry.file_name().to_string_lossy().into_owned(), parent.join(entry.file_name()));
            if matches(&pattern, &own) && !self.ignored.leaves_out(&path.to_string_lossy()) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// No folder on the way is a link to elsewhere.
    fn stays_inside(&self, path: &Path) -> Result<(), String> {
        match fs::canonicalize(self.folder.join(path)) {
            Ok(real) if !real.starts_with(&self.folder) => {
                Err(format!("{} leads out of the context", path.display()))
            }
            // What is not there is said as that.
            _ => Ok(()),
        }
    }
}

/// An archive of one file that everybody may read.
pub(super) fn one(name: &str, content: &[u8]) -> io::Result<File> {
    let mut archive = tar::Builder::new(tempfile::tempfile()?);
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, name, content)?;
    let mut archive = archive.into_inner()?;
    archive.rewind()?;
    Ok(archive)
}

/// An archive that is being written.
struct Packing<'a> {
    context: &'a Context,
    archive: tar::Builder<File>,
}

impl<'a> Packing<'a> {
    fn new(context: &'a Context) -> io::Result<Self> {
        let mut archive = tar::Builder::new(tempfile::tempfile()?);
        archive.follow_symlinks(false);
        Ok(Self { context, archive })
    }

    /// A file under its name or a new one; of a folder what is in it.
    fn add(&mut self, path: &Path, renamed: Option<&str>) -> io::Result<()> {
        let real = self.context.folder.join(path);
        if !real.is_dir() {
            let name = renamed.map(PathBuf::from).or_else(|| path.file_name().map(PathBuf::from));
            return self.entry(&real, &name.unwrap_or_default());
        }
        let mut left = vec![(path.to_owned(), PathBuf::new(), 0)];
        while let Some((path, name, depth)) = left.pop() {
            if depth > DEEPEST {
                return Err(io::Error::other("its folders are too deep"));
            }
            let mut entries =
                fs::read_dir(self.context.folder.join(&path))?.collect::<Result<Vec<_>, _>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let (path, name) = (path.join(entry.file_name()), name.join(entry.file_name()));
                if self.context.ignored.leaves_out(&path.to_string_lossy()) {
                    continue;
                }
                self.entry(&entry.path(), &name)?;
                if entry.file_type()?.is_dir() {
                    left.push((path, name, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// With nothing in it that is of this computer or of this day.
    fn entry(&mut self, real: &Path, name: &Path) -> io::Result<()> {
        let metadata = fs::symlink_metadata(real)?;
        let mut header = tar::Header::new_gnu();
        header.set_mode(metadata.permissions().mode() & 0o7777);
        header.set_size(0);
        let kind = metadata.file_type();
        if kind.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            self.archive.append_link(&mut header, name, fs::read_link(real)?)
        } else if kind.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            self.archive.append_data(&mut header, name, io::empty())
        } else if kind.is_file() {
            header.set_size(metadata.len());
            self.archive.append_data(&mut header, name, File::open(real)?)
        } else {
            Err(io::Error::other("it is neither file nor folder nor symbolic link"))
        }
    }

    fn finish(self, folder: &str) -> io::Result<Packed> {
        let mut archive = self.archive.into_inner()?;
        archive.rewind()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&archive)?;
        archive.rewind()?;
        Ok(Packed { archive, hash: hasher.finalize().to_hex().to_string(), folder: folder.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> (tempfile::TempDir, Context) {
        let tmp = tempfile::tempdir().unwrap();
        for (path, text) in
            [("a.txt", "a"), ("b.txt", "b"), ("src/x", "x"), ("src/deep/y", "y"), ("no/z", "z")]
        {
            fs::create_dir_all(tmp.path().join(path).parent().unwrap()).unwrap();
            fs::write(tmp.path().join(path), text).unwrap();
        }
        fs::write(tmp.path().join(".dockerignore"), "no\nsrc/deep/*.tmp\n").unwrap();
        fs::write(tmp.path().join("src/deep/t.tmp"), "").unwrap();
        std::os::unix::fs::symlink("/etc", tmp.path().join("out")).unwrap();
        let context = Context::open(tmp.path()).unwrap();
        (tmp, context)
    }

    fn packed(context: &Context, from: &[&str], to: &str) -> Result<(String, Vec<String>), String> {
        let from: Vec<_> = from.iter().map(|&name| name.to_owned()).collect();
        let packed = context.pack(&from, to)?;
        let mut archive = tar::Archive::new(packed.archive);
        let names = archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string());
        Ok((packed.folder, names.collect()))
    }

    #[test]
    fn files_lie_where_they_are_copied_to() {
        let (_tmp, context) = context();
        let is =
            |folder: &str, names: &[&str]| Ok((folder.to_owned(), names.iter().map(|&n| n.into()).collect()));
        assert_eq!(packed(&context, &["a.txt"], "/srv/new"), is("/srv", &["new"]));
        assert_eq!(packed(&context, &["a.txt"], "/new"), is("/", &["new"]));
        assert_eq!(packed(&context, &["./a.txt"], "/srv/"), is("/srv/", &["a.txt"]));
        assert_eq!(packed(&context, &["*.txt"], "/srv/"), is("/srv/", &["a.txt", "b.txt"]));
        let all = &["deep", "x", "deep/y"];
        assert_eq!(packed(&context, &["src"], "/srv/app"), is("/srv/app", all));
        assert_eq!(packed(&context, &["src/"], "/srv/"), is("/srv/", all));
        let (_, names) = packed(&context, &["."], "/srv/").unwrap();
        assert!(!names.iter().any(|name| name.starts_with("no") || name.ends_with(".tmp")), "{names:?}");
        assert!(names.contains(&"src/deep/y".to_owned()) && names.contains(&"out".to_owned()));
    }

    #[test]
    fn what_is_not_there_or_lies_elsewhere_is_refused() {
        let (_tmp, context) = context();
        for bad in [&["none"][..], &["../x"], &["no"], &["*.none"], &["out/passwd"], &["*/x"]] {
            assert!(packed(&context, bad, "/srv/").is_err(), "{bad:?}");
        }
        assert!(packed(&context, &["*.txt"], "/srv").is_err());
    }

    #[test]
    fn the_hash_is_of_names_modes_and_content_alone() {
        let (tmp, context) = context();
        let hash = || context.pack(&["src".to_owned()], "/x/").unwrap().hash;
        let first = hash();
        fs::write(tmp.path().join("src/x"), "x").unwrap();
        assert_eq!(hash(), first);
        fs::set_permissions(tmp.path().join("src/x"), fs::Permissions::from_mode(0o755)).unwrap();
        let second = hash();
        fs::write(tmp.path().join("src/x"), "z").unwrap();
        assert!(second != first && hash() != second);
    }
}
