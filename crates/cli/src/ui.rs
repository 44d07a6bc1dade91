//! The only place that prints. Results go to standard output, everything else to standard error: bars and
//! spinners on a terminal, plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::{ContentArrangement, Table, presets};
use forkd_protocol::error::chain;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::CliError;

/// How often a plain (not terminal) progress line is repeated.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Where and how a verb speaks.
#[derive(Debug, Clone)]
pub(crate) struct Ui {
    json: bool,
    terminal: bool,
}

impl Ui {
    /// With `json`, results are printed as the API's own types.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, terminal: io::stderr().is_terminal() }
    }

    /// Whether results are wanted as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a result: as JSON where asked for, else as `human` renders it.
    pub(crate) fn show<T: Serialize>(&self, value: &T, human: impl FnOnce(&T) -> String) {
        if self.json {
            // Serialising our own types fails only for maps with odd keys, which they have not.
            self.line(
                &serde_json::to_string_pretty(value).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}")),
            );
        } else {
            self.line(&human(value));
        }
    }

    /// A line of the result. An end of the reader (`| head`) is not an error.
    pub(crate) fn line(&self, text: &str) {
        let mut out = io::stdout().lock();
        let _ = if text.is_empty() || text.ends_with('\n') {
            out.write_all(text.as_bytes())
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
    }

    /// A line for the person, beside the result.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// A failure with its causes, and what to do.
    pub(crate) fn error(&self, e: &CliError) {
        self.note(&render_error(e));
    }

    /// Bytes of a sandbox's standard output, as they are.
    pub(crate) fn raw_out(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Bytes of a sandbox's standard error, as they are.
    pub(crate) fn raw_err(&self, bytes: &[u8]) -> io::Result<()> {
        io::stderr().lock().write_all(bytes)
    }

    /// What a guest wrote, as text: as it is into a file or pipe, without control characters on a terminal.
    pub(crate) fn guest_text(&self, bytes: &[u8]) {
        if io::stdout().is_terminal() {
            let text = String::from_utf8_lossy(bytes);
            self.line(&text.lines().map(|l| plain(l.trim_end_matches('\r')) + "\n").collect::<String>());
        } else {
            let _ = self.raw_out(bytes);
        }
    }

    /// Begins a step that may take long.
    pub(crate) fn step(&self, what: impl Into<String>) -> Step {
        let what = what.into();
        let bar = self.terminal.then(|| spinner(&what));
        if bar.is_none() {
            self.note(&format!("{what} ..."));
        }
        Step {
            ui: self.clone(),
            bar,
            what,
            began: Instant::now(),
            said: Instant::now(),
            done: 0,
            length: None,
        }
    }
}

fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A step under way. Dropped without [`Step::done`] it leaves no tick behind, and the error follows.
#[derive(Debug)]
pub(crate) struct Step {
    ui: Ui,
    bar: Option<ProgressBar>,
    what: String,
    began: Instant,
    said: Instant,
    done: u64,
    length: Option<u64>,
}

impl Step {
    /// What it is doing right now.
    pub(crate) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {text}", self.what)),
            None => self.ui.note(&format!("  {text}")),
        }
    }

    /// How many bytes there are to do: turns the spinner into a bar.
    pub(crate) fn bytes(&mut self, length: u64) {
        self.length = Some(length);
        let Some(bar) = &self.bar else { return };
        bar.set_length(length);
        let template = "{spinner} {msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} [{elapsed}]";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }

    /// So many bytes are done by now.
    pub(crate) fn at(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.said.elapsed() >= PLAIN_EVERY {
            self.said = Instant::now();
            let of = self.length.map(|l| format!(" of {}", HumanBytes(l))).unwrap_or_default();
            self.ui.note(&format!("  {}{of}", HumanBytes(done)));
        }
    }

    /// It is finished; `outcome` is a few words, or nothing.
    pub(crate) fn done(mut self, outcome: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let colon = if outcome.is_empty() { "" } else { ": " };
        self.ui.note(&format!("{}{colon}{outcome} ({})", self.what, took(self.began.elapsed())));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A duration as people read it.
pub(crate) fn took(d: Duration) -> String {
    let ms = d.as_secs_f64() * 1000.0;
    match d.as_secs() {
        0 if ms < 10.0 => format!("{ms:.2} ms"),
        0 => format!("{ms:.0} ms"),
        s @ 1..60 => format!("{:.1} s", s as f64 + f64::from(d.subsec_millis()) / 1000.0),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}

/// Bytes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// How long ago a moment was, as people read it.
pub(crate) fn age(created_at_unix: u64, now_unix: u64) -> String {
    match now_unix.saturating_sub(created_at_unix) {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn now_unix() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Columns under a heading, without lines: easy to read, easy to cut.
pub(crate) fn table<R, C>(heading: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = C>,
    C: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.to_vec());
    for row in rows {
        table.add_row(row.into_iter().map(|cell| plain(&cell)));
    }
    table.lines().map(|l| l.strip_prefix(' ').unwrap_or(&l).trim_end().to_owned() + "\n").collect()
}

/// What others wrote must not steer the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn render_error(e: &CliError) -> String {
    format!("error: {}", in_words(e))
}

/// A failure with its causes and what to do, as text.
pub(crate) fn in_words(e: &CliError) -> String {
    let mut text = chain(e);
    if let CliError::Api { body, .. } = e {
        for failure in &body.failures {
            text.push_str("\n  ");
            text.push_str(failure);
        }
    }
    if let Some(hint) = e.hint() {
        text.push_str("\nhint: ");
        text.push_str(&hint);
    }
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use forkd_protocol::error::ErrorClass;
    use forkd_protocol::rest::ErrorBody;

    use super::*;

    #[test]
    fn durations_sizes_and_ages_are_readable() {
        assert_eq!(took(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(took(Duration::from_millis(45)), "45 ms");
        assert_eq!(took(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(took(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(size(3 << 20), "3.00 MiB");
        assert_eq!(age(100, 130), "30 s");
        assert_eq!(age(0, 3 * 86_400), "3 d");
        assert_eq!(age(200, 100), "0 s");
    }

    #[test]
    fn tables_line_up_and_hide_control_characters() {
        let text =
            table(&["NAME", "SIZE"], [["py".to_owned(), "1".to_owned()], ["a\u{1b}[2J".into(), "22".into()]]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("NAME"));
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn an_error_is_printed_with_causes_failures_and_hint() {
        let e = CliError::caused(ErrorClass::Internal, "reading a", std::io::Error::other("broken"))
            .with_hint("try b");
        assert_eq!(render_error(&e), "error: reading a: broken\nhint: try b");
        let body = ErrorBody {
            error: "2 of 3 children failed".into(),
            code: "fork_failed".into(),
            failures: vec!["child 1: x".into()],
        };
        let text = render_error(&CliError::Api { status: 502, body });
        assert!(text.starts_with("error: 2 of 3 children failed\n  child 1: x\nhint: "), "{text}");
    }
}
