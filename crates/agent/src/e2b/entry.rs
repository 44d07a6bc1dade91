//! What a path is, in the words of the API.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::users;

/// One file, folder or link.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    pub(super) path: String,
    /// A string, as JSON's numbers are not safe beyond 2^53.
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
}

/// Names of users and groups, read once per call.
#[derive(Debug)]
pub(super) struct Names {
    passwd: String,
    group: String,
}

impl Names {
    pub(super) fn read() -> Self {
        Self { passwd: users::read(Path::new("/etc/passwd")), group: users::read(Path::new("/etc/group")) }
    }
}

impl Entry {
    /// Looks at a path. A link is shown as what it leads to, or as a link where that is missing.
    pub(super) fn of(path: &Path, names: &Names) -> io::Result<Self> {
        let own = fs::symlink_metadata(path)?;
        let is_symlink = own.is_symlink();
        let target = if is_symlink { fs::metadata(path).ok() } else { None };
        let symlink_target = is_symlink.then(|| {
            let leads_to = fs::canonicalize(path).or_else(|_| fs::read_link(path)).unwrap_or_default();
            leads_to.to_string_lossy().into_owned()
        });
        let modified = own.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Self {
            name: path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
            kind: kind_of(target.as_ref().unwrap_or(&own)),
            path: path.to_string_lossy().into_owned(),
            size: own.len().to_string(),
            mode: own.mode() & 0o7777,
            permissions: permissions(&own),
            owner: users::user_name(&names.passwd, own.uid()),
            group: users::group_name(&names.group, own.gid()),
            modified_time: rfc3339(modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
            symlink_target,
            is_symlink,
        })
    }
}

/// Devices, pipes and sockets count as files: clients drop entries of no known kind.
fn kind_of(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else if metadata.is_symlink() {
        "FILE_TYPE_SYMLINK"
    } else {
        "FILE_TYPE_FILE"
    }
}

/// As Go writes a file mode, since that is what clients of the API have always been shown.
fn permissions(metadata: &Metadata) -> String {
    let (mode, kind) = (metadata.mode(), metadata.file_type());
    let marks = [
        (kind.is_dir(), "d"),
        (kind.is_symlink(), "L"),
        (kind.is_block_device() || kind.is_char_device(), "D"),
        (kind.is_fifo(), "p"),
        (kind.is_socket(), "S"),
        (mode & 0o4000 != 0, "u"),
        (mode & 0o2000 != 0, "g"),
        (kind.is_char_device(), "c"),
        (mode & 0o1000 != 0, "t"),
    ];
    let mut text: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
    if text.is_empty() {
        text.push('-');
    }
    text.extend((0..9).map(|i| if mode & (0o400 >> i) != 0 { ['r', 'w', 'x'][i % 3] } else { '-' }));
    text
}

/// UTC with nanoseconds.
fn rfc3339(since_epoch: Duration) -> String {
    let (seconds, nanos) = (since_epoch.as_secs(), since_epoch.subsec_nanos());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Year, month and day of a number of days since 1970-01-01: in years that begin in March, leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn dates() {
        assert_eq!(rfc3339(Duration::ZERO), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(Duration::new(951_826_154, 5)), "2000-02-29T12:09:14.000000005Z");
        assert_eq!(rfc3339(Duration::from_secs(1_735_689_599)), "2024-12-31T23:59:59.000000000Z");
        assert_eq!(rfc3339(Duration::from_secs(4_107_542_400)), "2100-03-01T00:00:00.000000000Z");
    }

    #[test]
    fn kinds_and_permissions() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let names = Names::read();
        fs::write(at("file"), "abc").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::create_dir(at("dir")).unwrap();
        fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink("dir", at("link")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        let file = Entry::of(&at("file"), &names).unwrap();
        assert_eq!(
            (file.kind, file.size.as_str(), file.permissions.as_str()),
            ("FILE_TYPE_FILE", "3", "urwxr-x--x")
        );
        assert_eq!(file.mode, 0o4751);
        let dir = Entry::of(&at("dir"), &names).unwrap();
        assert_eq!((dir.kind, dir.permissions.as_str()), ("FILE_TYPE_DIRECTORY", "dtrwxrwxrwx"));
        let link = Entry::of(&at("link"), &names).unwrap();
        assert_eq!((link.kind, link.is_symlink), ("FILE_TYPE_DIRECTORY", true));
        let broken = Entry::of(&at("broken"), &names).unwrap();
        assert_eq!((broken.kind, broken.symlink_target.as_deref()), ("FILE_TYPE_SYMLINK", Some("nowhere")));
        assert!(Entry::of(&at("none"), &names).is_err());
    }
}
