//! Users and groups of the image, read from its own files: a static program has no name service to ask.

use std::fs;
use std::io;
use std::path::Path;

use crate::sys::Credentials;

/// What E2B's own images call their user.
pub(crate) const DEFAULT_USER: &str = "user";

/// A line of /etc/passwd, with the groups that name the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
    pub(crate) groups: Vec<u32>,
}

impl User {
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }
}

/// The user does not exist in the image.
#[derive(Debug, thiserror::Error)]
#[error("invalid username: '{0}'")]
pub(crate) struct UnknownUser(pub(crate) String);

/// Finds a user by name, or by number where no name matches. `root` and other numbers exist even where the
/// image lists no user at all. With `:GROUP` behind it, by name or number, that is the only group.
pub(crate) fn find(wanted: &str) -> Result<User, UnknownUser> {
    let passwd = read(Path::new("/etc/passwd"));
    let group = read(Path::new("/etc/group"));
    find_in(&passwd, &group, wanted).ok_or_else(|| UnknownUser(wanted.to_owned()))
}

/// Adds the user that clients of E2B expect, where the image has users but not this one.
pub(crate) fn ensure_default() -> io::Result<()> {
    let passwd = read(Path::new("/etc/passwd"));
    if passwd.is_empty() || find_in(&passwd, "", DEFAULT_USER).is_some() {
        return Ok(());
    }
    let group = read(Path::new("/etc/group"));
    let Some(id) = free_id(&passwd, &group) else { return Ok(()) };
    let home = format!("/home/{DEFAULT_USER}");
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    add_line("/etc/group", &group, &format!("{DEFAULT_USER}:x:{id}:"))?;
    add_line("/etc/passwd", &passwd, &format!("{DEFAULT_USER}:x:{id}:{id}::{home}:{shell}"))?;
    fs::create_dir_all(&home)?;
    std::os::unix::fs::chown(&home, Some(id), Some(id))
}

/// The first id that neither a user nor a group has, of those that images give to people.
fn free_id(passwd: &str, group: &str) -> Option<u32> {
    let taken = |table: &str, id: u32| {
        table.lines().any(|line| line.split(':').nth(2).and_then(|n| n.parse().ok()) == Some(id))
    };
    (1000..2000).find(|id| !taken(passwd, *id) && !taken(group, *id))
}

/// Written aside and renamed: a boot that is cut off leaves the old table.
fn add_line(path: &str, table: &str, line: &str) -> io::Result<()> {
    let separator = if table.is_empty() || table.ends_with('\n') { "" } else { "\n" };
    let aside = format!("{path}.forkd");
    fs::write(&aside, format!("{table}{separator}{line}\n"))?;
    if let Ok(old) = fs::metadata(path) {
        fs::set_permissions(&aside, old.permissions())?;
    }
    fs::rename(aside, path)
}

/// Name of a user id, or the number.
pub(crate) fn user_name(passwd: &str, uid: u32) -> String {
    name_of(passwd, uid)
}

/// Name of a group id, or the number.
pub(crate) fn group_name(group: &str, gid: u32) -> String {
    name_of(group, gid)
}

/// A file's text; empty where it is missing or not text.
pub(crate) fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn find_in(passwd: &str, group: &str, wanted: &str) -> Option<User> {
    let Some((user, named)) = wanted.split_once(':') else { return find_user(passwd, group, wanted) };
    let mut user = find_user(passwd, group, user)?;
    user.gid = group_id(group, named).or_else(|| named.parse().ok())?;
    user.groups = vec![user.gid];
    Some(user)
}

fn group_id(group: &str, wanted: &str) -> Option<u32> {
    let line = group.lines().find(|line| line.split(':').next() == Some(wanted))?;
    line.split(':').nth(2)?.parse().ok()
}

fn find_user(passwd: &str, group: &str, wanted: &str) -> Option<User> {
    let number = wanted.parse::<u32>().ok();
    let users = || passwd.lines().filter_map(parse_user);
    let found =
        users().find(|user| user.name == wanted).or_else(|| users().find(|user| Some(user.uid) == number));
    let mut user = match (found, number) {
        (Some(user), _) => user,
        (None, _) if wanted == "root" => nameless(0),
        (None, Some(uid)) => nameless(uid),
        (None, None) => return None,
    };
    user.groups = groups_of(group, &user.name, user.gid);
    Some(user)
}

fn nameless(uid: u32) -> User {
    let (name, home) = if uid == 0 { ("root".into(), "/root") } else { (uid.to_string(), "/") };
    User { name, uid, gid: uid, home: home.into(), groups: Vec::new() }
}

fn parse_user(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned();
    Some(User { name, uid, gid, home, groups: Vec::new() })
}

fn groups_of(group: &str, user: &str, primary: u32) -> Vec<u32> {
    let mut groups = vec![primary];
    for line in group.lines() {
        let mut fields = line.split(':').skip(2);
        let Some(gid) = fields.next().and_then(|gid| gid.parse().ok()) else { continue };
        let member =
            fields.next().is_some_and(|members| members.split(',').any(|member| member.trim() == user));
        if member && !groups.contains(&gid) {
            groups.push(gid);
        }
    }
    groups
}

fn name_of(table: &str, id: u32) -> String {
    let named = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>().ok()? == id).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n# comment\nbroken:x:abc\n\
                          user:x:1000:1000:,,,:/home/user:/bin/bash\n2000:x:5:5::/five:/bin/sh\nnohome:x:7:7::relative:\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:other,user\nuser:x:1000:\ndocker:x:999:user, other\nbad:x:x:user\n";

    #[test]
    fn by_name_with_groups() {
        let user = find_in(PASSWD, GROUP, "user").unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (1000, 1000, "/home/user"));
        assert_eq!(user.groups, [1000, 27, 999]);
    }

    #[test]
    fn a_name_of_digits_wins_over_the_number() {
        assert_eq!(find_in(PASSWD, GROUP, "2000").unwrap().uid, 5);
        assert_eq!(find_in(PASSWD, GROUP, "1000").unwrap().name, "user");
        assert_eq!(find_in(PASSWD, GROUP, "4242").unwrap().uid, 4242);
    }

    #[test]
    fn a_named_group_is_the_only_one() {
        let user = find_in(PASSWD, GROUP, "user:docker").unwrap();
        assert_eq!((user.uid, user.gid, &user.groups[..]), (1000, 999, &[999][..]));
        assert_eq!(find_in(PASSWD, GROUP, "1000:12").unwrap().gid, 12);
        assert_eq!(find_in("", "", "65534:65534").unwrap().gid, 65534);
        assert!(find_in(PASSWD, GROUP, "user:nogroup").is_none());
        assert!(find_in(PASSWD, GROUP, "user:").is_none());
    }

    #[test]
    fn a_new_user_takes_an_id_that_nobody_has() {
        assert_eq!(free_id(PASSWD, GROUP), Some(1001));
        assert_eq!(free_id("", "x:x:1000:\ny:x:1001:\n"), Some(1002));
    }

    #[test]
    fn images_without_users() {
        assert_eq!(find_in("", "", "root").unwrap().home, "/root");
        assert!(find_in("", "", "alice").is_none());
        assert_eq!(find_in(PASSWD, GROUP, "nohome").unwrap().home, "/");
    }

    #[test]
    fn names_of_ids() {
        assert_eq!(user_name(PASSWD, 1000), "user");
        assert_eq!(group_name(GROUP, 27), "sudo");
        assert_eq!(group_name(GROUP, 4711), "4711");
    }
}
