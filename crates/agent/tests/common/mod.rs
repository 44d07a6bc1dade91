//! An agent as an ordinary process, and a client that sees every byte.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "only tests call this")]

use forkd_testkit::guard;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

const CGROUP2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

pub(crate) struct Agent {
    process: Child,
    pub(crate) address: String,
    cgroup: Option<PathBuf>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Agent {
    /// Without cgroups, as an unprivileged process would run.
    pub(crate) fn plain() -> Self {
        Self::start(None)
    }

    /// With cgroups, where this machine lets us make some; says so where it does not.
    pub(crate) fn with_cgroups() -> Option<Self> {
        let made = CGROUP2.iter().find_map(|root| {
            let path = PathBuf::from(root).join(format!("forkd-test-{}-{:x}", std::process::id(), unique()));
            std::fs::create_dir(&path).ok()?;
            if path.join("cgroup.kill").exists() {
                return Some(path);
            }
            let _ = std::fs::remove_dir(path);
            None
        });
        let found = made.as_ref().map(|_| ()).ok_or_else(|| "no cgroup (v2) can be made here".to_owned());
        guard::met("cgroup", found);
        Some(Self::start(Some(made?)))
    }

    fn start(cgroup: Option<PathBuf>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkd-agent"));
        command.args(["--serve-tcp", "127.0.0.1:0"]).stdout(Stdio::piped()).stdin(Stdio::null());
        if let Some(path) = &cgroup {
            command.arg("--cgroup-root").arg(path);
        }
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("the agent's address").to_owned();
        Self { process, address, cgroup }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn cgroup(&self) -> PathBuf {
        self.cgroup.clone().unwrap()
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    pub(crate) fn call(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut reader = BufReader::new(self.send(method, path, headers, body));
        let (status, head) = read_head(&mut reader);
        let mut body = Vec::new();
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            Chunked::new(reader).read_to_end(&mut body).unwrap();
        } else {
            reader.read_to_end(&mut body).unwrap();
        }
        Answer { status, head, body }
    }

    /// One of forkd's verbs.
    pub(crate) fn verb(&self, verb: &str, body: &Value) -> (u16, Value) {
        let answer = self.call("POST", &format!("/forkd/v1/{verb}"), "", body.to_string().as_bytes());
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    pub(crate) fn health(&self) -> Value {
        serde_json::from_slice(&self.call("GET", "/forkd/v1/health", "", b"").body).unwrap()
    }

    pub(crate) fn exec(&self, args: &[&str]) -> Ran {
        self.exec_with(json!({ "args": args, "timeout_ms": 60_000, "max_output": 64 << 20 }))
    }

    pub(crate) fn exec_with(&self, request: Value) -> Ran {
        let (status, value) = self.verb("exec", &request);
        assert_eq!(status, 200, "{value}");
        let bytes = |name: &str| BASE64.decode(value[name].as_str().unwrap()).unwrap();
        Ran { stdout: bytes("stdout_base64"), stderr: bytes("stderr_base64"), value }
    }

    pub(crate) fn eval(&self, code: &str) -> Value {
        self.eval_within(code, 20_000)
    }

    pub(crate) fn eval_within(&self, code: &str, timeout_ms: u64) -> Value {
        let (status, value) = self.verb("eval", &json!({ "code": code, "timeout_ms": timeout_ms }));
        assert_eq!(status, 200, "{value}");
        value
    }

    /// A unary call of the sandbox API.
    pub(crate) fn unary(&self, method: &str, body: &Value) -> (u16, Value) {
        let answer = self.call(
            "POST",
            &format!("/{method}"),
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        );
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    /// A streaming call of the sandbox API.
    pub(crate) fn stream(&self, method: &str, headers: &str, body: &Value) -> Events {
        let headers = format!("Content-Type: application/connect+json\r\n{headers}");
        let stream = self.send("POST", &format!("/{method}"), &headers, &envelope(body));
        let mut reader = BufReader::new(stream);
        let (status, head) = read_head(&mut reader);
        assert_eq!(status, 200);
        assert!(head.contains("application/connect+json"), "{head}");
        let source: Box<dyn Read> =
            if head.contains("chunked") { Box::new(Chunked::new(reader)) } else { Box::new(reader) };
        Events { source }
    }

    pub(crate) fn start_process(&self, args: &[&str], more: Value) -> Events {
        let mut request = json!({ "process": { "cmd": args[0], "args": args[1..] }, "stdin": false });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.stream("process.Process/Start", "", &request)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(path) = &self.cgroup {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(path) = &self.cgroup {
            until("the test's cgroups are empty", || remove_tree(path));
        }
    }
}

fn remove_tree(path: &PathBuf) -> bool {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    std::fs::remove_dir(path).is_ok() || !path.exists()
}

pub(crate) struct Ran {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) value: Value,
}

impl Ran {
    pub(crate) fn code(&self) -> i64 {
        self.value["exit_code"].as_i64().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

/// Messages of a stream, as they come.
pub(crate) struct Events {
    source: Box<dyn Read>,
}

/// What a process's stream gave from beginning to end.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) pid: i64,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) end: Option<Value>,
    pub(crate) error: Option<Value>,
}

impl Events {
    /// The flags and the message of the next envelope.
    pub(crate) fn next(&mut self) -> (u8, Value) {
        let mut header = [0; 5];
        self.source.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes(header[1..].try_into().unwrap()) as usize;
        assert!(length < 64 * 1024, "a chunk of {length} bytes");
        let mut body = vec![0; length];
        self.source.read_exact(&mut body).unwrap();
        (header[0], serde_json::from_slice(&body).unwrap())
    }

    pub(crate) fn pid(&mut self) -> i64 {
        self.next().1["event"]["start"]["pid"].as_i64().expect("a start event")
    }

    /// Reads to the end.
    pub(crate) fn told(mut self) -> Told {
        let mut told = Told::default();
        loop {
            let (flags, message) = self.next();
            if flags == 2 {
                told.error = message.get("error").cloned();
                assert_eq!(self.source.read(&mut [0]).unwrap(), 0);
                return told;
            }
            let event = &message["event"];
            if let Some(pid) = event["start"]["pid"].as_i64() {
                told.pid = pid;
            } else if let Some(end) = event.get("end") {
                told.end = Some(end.clone());
            } else if let Some(data) = event.get("data") {
                told.add(data);
            }
        }
    }

    /// Reads until output contains `wanted`.
    pub(crate) fn until(&mut self, wanted: &str) -> Told {
        let mut told = Told::default();
        loop {
            let (flags, message) = self.next();
            assert_eq!(flags, 0, "ended before {wanted:?}: {message}");
            if let Some(data) = message["event"].get("data") {
                told.add(data);
            }
            let all = [&told.stdout[..], &told.stderr, &told.pty].concat();
            if String::from_utf8_lossy(&all).contains(wanted) {
                return told;
            }
        }
    }
}

impl Told {
    fn add(&mut self, data: &Value) {
        for (name, to) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)]
        {
            if let Some(text) = data[name].as_str() {
                let bytes = BASE64.decode(text).unwrap();
                assert!(bytes.len() <= 32 * 1024);
                to.extend(bytes);
            }
        }
    }
}

pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut frame = vec![0];
    frame.extend((text.len() as u32).to_be_bytes());
    frame.extend(text.as_bytes());
    frame
}

/// Waits for something that comes about by itself, within half a minute.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether any living process has this text in its command line.
pub(crate) fn runs(text: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).replace('\0', " ").contains(text)
    })
}

/// A number that no other test uses, to be found again in a command line.
pub(crate) fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    100_000_000 + u64::from(std::process::id() % 1_000_000) * 1000 + next
}

pub(crate) fn read_head(reader: &mut impl BufRead) -> (u16, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "the answer ended in its head: {head:?}");
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head)
}

struct Chunked<R> {
    source: R,
    left: usize,
    over: bool,
}

impl<R: BufRead> Chunked<R> {
    fn new(source: R) -> Self {
        Self { source, left: 0, over: false }
    }
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.over {
            let mut line = String::new();
            self.source.read_line(&mut line)?;
            self.left = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            self.over = self.left == 0;
        }
        if self.over {
            return Ok(0);
        }
        let wanted = buffer.len().min(self.left);
        let count = self.source.read(&mut buffer[..wanted])?;
        self.left -= count;
        if self.left == 0 {
            self.source.read_line(&mut String::new())?;
        }
        Ok(count)
    }
}
