//! The way into the machine: a key of its own, and one connection that all commands share.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::dirs::{self, Dirs};
use super::error::MachineError;
use super::record::Record;
use super::tools::{SSH, SSH_KEYGEN};

/// Longest path of a Unix socket, less what ssh appends while it makes one.
const LONGEST_SOCKET: usize = 107 - 17;

/// Who may enter.
pub(crate) fn client_key(dirs: &Dirs) -> PathBuf {
    dirs.file("client_key")
}

/// Who the machine is.
pub(crate) fn host_key(dirs: &Dirs) -> PathBuf {
    dirs.file("host_key")
}

/// The public half of a key.
pub(crate) fn public(key: &Path) -> PathBuf {
    key.with_extension("pub")
}

/// The token of whoever has the client's key. It says nothing of the key.
pub(crate) fn owner_token(dirs: &Dirs) -> Result<String, MachineError> {
    const CONTEXT: &str = "forkd 2026 token of the machine's owner";
    let path = client_key(dirs);
    let key = fs::read(&path).map_err(|e| MachineError::io("read", &path, e))?;
    Ok(blake3::Hash::from(blake3::derive_key(CONTEXT, &key)).to_hex().to_string())
}

/// Makes both keys and the list of known hosts, where they are missing.
pub(crate) fn make_keys(dirs: &Dirs) -> Result<(), MachineError> {
    for key in [client_key(dirs), host_key(dirs)] {
        if key.is_file() && public(&key).is_file() {
            continue;
        }
        for half in [key.clone(), public(&key)] {
            let _ = fs::remove_file(half);
        }
        let mut args: Vec<OsString> =
            ["-q", "-t", "ed25519", "-N", "", "-C", "forkd-machine", "-f"].map(OsString::from).to_vec();
        args.push(key.into());
        SSH_KEYGEN.run(args)?;
    }
    let key = public(&host_key(dirs));
    let text = fs::read_to_string(&key).map_err(|e| MachineError::io("read", &key, e))?;
    dirs::replace(&dirs.file("known_hosts"), format!("forkd-machine {text}").as_bytes(), 0o600)
}

/// A machine that can be entered.
#[derive(Debug)]
pub(crate) struct Ssh {
    program: PathBuf,
    options: Vec<String>,
    control: Option<PathBuf>,
}

impl Ssh {
    /// The way into the machine that runs.
    pub(crate) fn to(dirs: &Dirs, record: &Record) -> Result<Self, MachineError> {
        let control = Some(dirs.file("ssh.control")).filter(|p| p.as_os_str().len() <= LONGEST_SOCKET);
        let options = options(dirs, record.plan.ssh_port, control.as_deref());
        Ok(Self { program: SSH.find()?, options, control })
    }

    /// Makes sure that the shared connection is there. It is a process of its own: were it the first command
    /// itself, it would keep that command's output open for as long as it lives.
    fn connect(&self) -> Result<(), MachineError> {
        let Some(control) = &self.control else { return Ok(()) };
        if self.silent(&["-O", "check"])? {
            return Ok(());
        }
        let _ = fs::remove_file(control);
        self.silent(&["-f", "-N", "-M", "-o", "ControlPersist=600"]).map(drop)
    }

    /// Ends the shared connection.
    pub(crate) fn disconnect(&self) {
        if self.control.as_ref().is_some_and(|c| c.exists()) {
            let _ = self.silent(&["-O", "exit"]);
        }
    }

    /// Runs a command line of the machine's shell; its output where it succeeds.
    pub(crate) fn run(&self, line: &str) -> Result<Output, MachineError> {
        self.connect()?;
        let mut command = self.command(&[]);
        let output = command.arg("--").arg(line).stdin(Stdio::null()).output();
        checked(output.map_err(|e| MachineError::io("run", &self.program, e))?)
    }

    /// The same with something to read, which `feed` writes.
    pub(crate) fn feed(
        &self,
        line: &str,
        feed: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), MachineError> {
        self.connect()?;
        let mut command = self.command(&[]);
        command.arg("--").arg(line).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let failed = |e: io::Error| MachineError::io("run", &self.program, e);
        let mut child = command.spawn().map_err(failed)?;
        let fed = child.stdin.take().map_or(Ok(()), |mut stdin| feed(&mut stdin));
        // Where the other end failed, its words say more than our broken pipe.
        checked(child.wait_with_output().map_err(failed)?)?;
        fed.map_err(failed)
    }

    /// A session with this process's own input and output: a shell, or `words` as they are. Its exit code.
    pub(crate) fn session(&self, words: &[String], terminal: bool) -> Result<u8, MachineError> {
        self.connect()?;
        let mut command = self.command(if terminal { &["-t"] } else { &[] });
        if !words.is_empty() {
            command.arg("--").arg(words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" "));
        }
        let child = command.spawn().and_then(|mut child: Child| child.wait());
        let status = child.map_err(|e| MachineError::io("run", &self.program, e))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255))
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options).args(more).arg("root@127.0.0.1");
        command
    }

    fn silent(&self, more: &[&str]) -> Result<bool, MachineError> {
        let mut command = self.command(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|e| MachineError::io("run", &self.program, e))?;
        Ok(status.success())
    }
}

/// Copies a file into the machine, compressed on the way: interpreted ciphers are slow.
pub(crate) fn push(ssh: &Ssh, from: &Path, to: &str) -> Result<(), MachineError> {
    let (aside, to) = (quoted(&format!("{to}.new")), quoted(to));
    let line = format!("zstd -q -d -c >{aside} && chmod 755 {aside} && mv -f {aside} {to}");
    ssh.feed(&line, |out| {
        let mut file = File::open(from)?;
        let mut encoder = zstd::Encoder::new(out, 6)?;
        io::copy(&mut file, &mut encoder)?;
        encoder.finish().map(drop)
    })
}

fn checked(output: Output) -> Result<Output, MachineError> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let tail = said.lines().next_back().map_or_else(|| output.status.to_string(), str::to_owned);
    Err(MachineError::ToolFailed { tool: SSH.name, tail })
}

fn options(dirs: &Dirs, port: u16, control: Option<&Path>) -> Vec<String> {
    let mut options: Vec<String> = ["-F", "none", "-p"].map(str::to_owned).to_vec();
    options.push(port.to_string());
    let mut set = |name: &str, value: &str| options.extend(["-o".to_owned(), format!("{name}={value}")]);
    set("IdentityFile", &file_option(&client_key(dirs)));
    set("IdentitiesOnly", "yes");
    set("UserKnownHostsFile", &file_option(&dirs.file("known_hosts")));
    set("GlobalKnownHostsFile", "none");
    set("HostKeyAlias", "forkd-machine");
    set("StrictHostKeyChecking", "yes");
    set("BatchMode", "yes");
    set("LogLevel", "ERROR");
    set("ConnectTimeout", "30");
    set("ServerAliveInterval", "30");
    set("KexAlgorithms", "curve25519-sha256");
    set("Ciphers", "aes128-gcm@openssh.com");
    set("ControlMaster", "no");
    set("ControlPath", &control.map_or_else(|| "none".to_owned(), file_option));
    options
}

/// ssh splits at blanks and expands `%` in file options.
fn file_option(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('%', "%%"))
}

/// A word as the machine's shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_are() {
        for word in ["", "a b", "it's", "$HOME", "a\nb", "'''", "\\", "*", "ä"] {
            let out =
                Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(word))).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
        }
    }

    #[test]
    fn keys_are_made_once_and_the_machine_is_known_by_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::new(dir.path().into(), dir.path().into());
        make_keys(&dirs).unwrap();
        let before = fs::read(client_key(&dirs)).unwrap();
        make_keys(&dirs).unwrap();
        assert_eq!(fs::read(client_key(&dirs)).unwrap(), before);
        let known = fs::read_to_string(dirs.file("known_hosts")).unwrap();
        let key = fs::read_to_string(public(&host_key(&dirs))).unwrap();
        assert_eq!(known, format!("forkd-machine {key}"));
    }

    #[test]
    fn ssh_understands_the_options_also_with_an_odd_folder() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("with blank, %h");
        let dirs = Dirs::new(odd.clone(), odd.clone());
        let out = Command::new("ssh")
            .args(options(&dirs, 2222, None))
            .args(["-G", "root@127.0.0.1"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.contains("port 2222\n") && text.contains("hostkeyalias forkd-machine\n"), "{text}");
        assert!(
            text.contains(&format!(
                "identityfile {}/client_key",
                odd.display().to_string().replace('%', "%%")
            )),
            "{text}"
        );
    }
}
