//! What a caller asks to run, checked against the image and turned into what the kernel needs.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forkd_protocol::guest::ImageSettings;

use crate::users::{self, UnknownUser, User};

/// `PATH` where neither the sandbox nor the caller sets one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process as a caller describes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Command {
    /// Where it is empty, and there are no arguments either, it is what the image runs.
    pub(crate) program: String,
    /// Without the program's own name.
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    /// Name or number, with or without `:group`; the image's where absent, else root.
    pub(crate) user: Option<String>,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// No such program in `PATH`, or at that path; shells say 127.
    #[error("{0}: command not found")]
    NotFound(String),
    /// The file is there but cannot be run; shells say 126.
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable { program: String, source: std::io::Error },
    #[error(transparent)]
    User(#[from] UnknownUser),
    /// The working directory is missing.
    #[error("cwd '{0}' does not exist")]
    Cwd(String),
    /// A NUL byte, an empty program name, a variable without a name.
    #[error("{0}")]
    Malformed(&'static str),
    /// The workload stands still for a snapshot.
    #[error("the sandbox is frozen for a snapshot")]
    Frozen,
    /// The guest is out of processes, memory or descriptors.
    #[error("no process could be made")]
    Resources(#[from] std::io::Error),
}

/// A command whose every part was found.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) program: CString,
    pub(crate) args: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    pub(crate) user: User,
}

/// Finds user, directory and program. `sandbox_env` is what every process of the sandbox is given.
pub(crate) fn resolve(
    command: &Command,
    sandbox_env: &BTreeMap<String, String>,
    image: &ImageSettings,
) -> Result<Resolved, StartError> {
    let words = words(command, image)?;
    let user = users::find(command.user.as_deref().or(image.user.as_deref()).unwrap_or("root"))?;
    let cwd = working_directory(command.cwd.as_deref(), image.workdir.as_deref(), &user)?;
    let env = environment(&user, [&image.env, sandbox_env, &command.env]);
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let program = find_program(words[0], path, &cwd)?;
    let args = words.iter().map(|arg| c_string(arg.as_bytes()));
    Ok(Resolved {
        program: c_string(program.as_os_str().as_bytes())?,
        args: args.collect::<Result<_, _>>()?,
        env: env.iter().map(variable).collect::<Result<_, _>>()?,
        cwd: c_string(cwd.as_os_str().as_bytes())?,
        user,
    })
}

/// Program and arguments: the command's, or those that the image runs. Never empty.
fn words<'a>(command: &'a Command, image: &'a ImageSettings) -> Result<Vec<&'a String>, StartError> {
    let asked: Vec<_> = std::iter::once(&command.program).chain(&command.args).collect();
    if !command.program.is_empty() {
        return Ok(asked);
    }
    let of_image: Vec<_> = image.entrypoint.iter().chain(&image.cmd).collect();
    if !command.args.is_empty() || of_image.first().is_none_or(|program| program.is_empty()) {
        return Err(StartError::Malformed("the command is empty"));
    }
    Ok(of_image)
}

/// A path as the user means it: `~` and relative paths lead from the home directory.
pub(crate) fn expand(path: &str, home: &str) -> PathBuf {
    if path.is_empty() || path == "~" {
        return home.into();
    }
    match path.strip_prefix("~/") {
        Some(rest) => Path::new(home).join(rest),
        None => Path::new(home).join(path),
    }
}

fn working_directory(
    wanted: Option<&str>,
    of_image: Option<&str>,
    user: &User,
) -> Result<PathBuf, StartError> {
    if let Some(wanted) = wanted.filter(|cwd| !cwd.is_empty()) {
        let cwd = expand(wanted, &user.home);
        return if cwd.is_dir() { Ok(cwd) } else { Err(StartError::Cwd(cwd.display().to_string())) };
    }
    // Nobody asked for these, so a missing one is no error.
    let usual = [of_image.unwrap_or("~"), "~"].map(|cwd| expand(cwd, &user.home));
    Ok(usual.into_iter().find(|cwd| cwd.is_dir()).unwrap_or_else(|| "/".into()))
}

/// The variables of a process; later layers override earlier ones.
fn environment(user: &User, layers: [&BTreeMap<String, String>; 3]) -> BTreeMap<String, String> {
    let base = [("PATH", DEFAULT_PATH), ("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name)];
    let mut env: BTreeMap<String, String> = base.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    for layer in layers {
        env.extend(layer.clone());
    }
    env
}

/// As execvp does, with the process's own PATH and directory.
fn find_program(name: &str, path: &str, cwd: &Path) -> Result<PathBuf, StartError> {
    let not_executable = |kind: std::io::ErrorKind| StartError::NotExecutable {
        program: name.to_owned(),
        source: std::io::Error::from(kind),
    };
    if name.contains('/') {
        return match is_executable(&cwd.join(name)) {
            Some(true) => Ok(name.into()),
            Some(false) => Err(not_executable(std::io::ErrorKind::PermissionDenied)),
            None => Err(StartError::NotFound(name.to_owned())),
        };
    }
    let mut denied = false;
    for folder in path.split(':') {
        let candidate = cwd.join(folder).join(name);
        match is_executable(&candidate) {
            Some(true) => return Ok(candidate),
            Some(false) => denied = true,
            None => {}
        }
    }
    Err(if denied {
        not_executable(std::io::ErrorKind::PermissionDenied)
    } else {
        StartError::NotFound(name.to_owned())
    })
}

/// None where there is no such thing. Whether this very user may run it is for exec to say.
fn is_executable(path: &Path) -> Option<bool> {
    let metadata = path.metadata().ok()?;
    Some(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn variable((name, value): (&String, &String)) -> Result<CString, StartError> {
    if name.is_empty() || name.contains('=') {
        return Err(StartError::Malformed("an environment variable has no proper name"));
    }
    c_string(format!("{name}={value}").as_bytes())
}

fn c_string(bytes: &[u8]) -> Result<CString, StartError> {
    CString::new(bytes).map_err(|_| StartError::Malformed("a NUL byte in a command, variable or path"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn program(folder: &Path, name: &str, mode: u32) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), "").unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn path_is_searched_in_order_and_folders_and_plain_files_are_passed_over() {
        let tmp = tempfile::tempdir().unwrap();
        program(&tmp.path().join("b"), "tool", 0o644);
        program(&tmp.path().join("c"), "tool", 0o755);
        fs::create_dir_all(tmp.path().join("a/tool")).unwrap();
        let path = format!("{0}/none:{0}/a:{0}/b:{0}/c", tmp.path().display());
        assert_eq!(find_program("tool", &path, Path::new("/")).unwrap(), tmp.path().join("c/tool"));
        let relative = find_program("tool", "b:c", tmp.path()).unwrap();
        assert_eq!(relative, tmp.path().join("c/tool"));
        assert!(matches!(find_program("tool", "b", tmp.path()), Err(StartError::NotExecutable { .. })));
        assert!(matches!(find_program("nix", "b:c", tmp.path()), Err(StartError::NotFound(_))));
    }

    #[test]
    fn a_slash_means_no_search() {
        let tmp = tempfile::tempdir().unwrap();
        program(&tmp.path().join("b"), "tool", 0o755);
        assert_eq!(find_program("b/tool", "/none", tmp.path()).unwrap(), Path::new("b/tool"));
        assert!(find_program("./tool", "/none", tmp.path()).is_err());
    }

    #[test]
    fn home_and_relative_directories() {
        assert_eq!(expand("~", "/home/u"), Path::new("/home/u"));
        assert_eq!(expand("~/x", "/home/u"), Path::new("/home/u/x"));
        assert_eq!(expand("x/y", "/home/u"), Path::new("/home/u/x/y"));
        assert_eq!(expand("/x", "/home/u"), Path::new("/x"));
    }

    #[test]
    fn request_overrides_sandbox_overrides_image_overrides_base() {
        let user = users::find("root").unwrap();
        let image = [("PATH".to_owned(), "/i".to_owned()), ("HOME".into(), "/h".into())].into();
        let sandbox = [("PATH".to_owned(), "/s".to_owned()), ("A".into(), "1".into())].into();
        let request = [("A".to_owned(), "2".to_owned())].into();
        let env = environment(&user, [&image, &sandbox, &request]);
        assert_eq!((env["PATH"].as_str(), env["A"].as_str(), env["USER"].as_str()), ("/s", "2", "root"));
        assert_eq!(env["HOME"], "/h");
    }

    #[test]
    fn the_image_says_what_nobody_else_says() {
        let none = BTreeMap::new();
        let image = ImageSettings {
            user: Some("65534:0".to_owned()),
            workdir: Some("/usr".to_owned()),
            entrypoint: vec!["/bin/sh".to_owned()],
            cmd: vec!["-c".to_owned(), "true".to_owned()],
            ..ImageSettings::default()
        };
        let of_image = resolve(&Command::default(), &none, &image).unwrap();
        assert_eq!((of_image.program.to_bytes(), of_image.cwd.to_bytes()), (&b"/bin/sh"[..], &b"/usr"[..]));
        assert_eq!((of_image.args.len(), of_image.user.uid, of_image.user.gid), (3, 65534, 0));
        let asked = Command {
            program: "/bin/ls".into(),
            cwd: Some("/".into()),
            user: Some("root".into()),
            ..Command::default()
        };
        let asked = resolve(&asked, &none, &image).unwrap();
        assert_eq!((asked.args.len(), asked.cwd.to_bytes(), asked.user.uid), (1, &b"/"[..], 0));
        let gone = ImageSettings { workdir: Some("/no/such".to_owned()), ..image };
        assert!(resolve(&Command::default(), &none, &gone).is_ok());
        let odd = Command { args: vec!["x".into()], ..Command::default() };
        assert!(matches!(resolve(&odd, &none, &gone), Err(StartError::Malformed(_))));
    }

    #[test]
    fn hostile_requests_are_refused() {
        let none = BTreeMap::new();
        let image = ImageSettings::default();
        let command = |program: &str| Command { program: program.into(), ..Command::default() };
        assert!(matches!(resolve(&command(""), &none, &image), Err(StartError::Malformed(_))));
        let nul = Command { args: vec!["a\0b".into()], ..command("/bin/sh") };
        assert!(matches!(resolve(&nul, &none, &image), Err(StartError::Malformed(_))));
        let env = Command { env: [("A=B".into(), "c".into())].into(), ..command("/bin/sh") };
        assert!(matches!(resolve(&env, &none, &image), Err(StartError::Malformed(_))));
        let cwd = Command { cwd: Some("/no/such".into()), ..command("/bin/sh") };
        assert!(matches!(resolve(&cwd, &none, &image), Err(StartError::Cwd(_))));
    }
}
