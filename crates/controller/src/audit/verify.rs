//! Reading the whole log against itself.

use std::io;
use std::path::Path;

use forkd_store::AuditHead;

use super::{AuditReport, Line, NOTHING_BEFORE, files, hash_of};

/// Problems that are told; a log of millions of wrong lines is wrong all the same.
const MOST_PROBLEMS: usize = 100;

/// Reads all lines. `known` is the newest line that was ever safe. Blocks.
pub(crate) fn verify(folder: &Path, known: Option<&AuditHead>) -> io::Result<AuditReport> {
    let mut walk =
        Walk { known, seq: 0, hash: NOTHING_BEFORE.to_owned(), lines: 0, met: false, problems: vec![] };
    let all = files::all(folder)?;
    for (n, path) in all.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let last = n + 1 == all.len();
        files::each_line(path, |number, line, whole| {
            let place = format!("{name}:{number}");
            if whole {
                walk.line(&place, line);
            } else if !last {
                walk.problem(format!("{place}: the line has no end"));
            }
        })?;
    }
    walk.end();
    let Walk { lines, hash: head, problems, .. } = walk;
    Ok(AuditReport { sound: problems.is_empty(), files: all.len() as u64, lines, head, problems })
}

struct Walk<'a> {
    known: Option<&'a AuditHead>,
    seq: u64,
    hash: String,
    lines: u64,
    met: bool,
    problems: Vec<String>,
}

impl Walk<'_> {
    fn line(&mut self, place: &str, line: &[u8]) {
        self.lines += 1;
        let hash = hash_of(line);
        match serde_json::from_slice::<Line>(line) {
            Err(e) => self.problem(format!("{place}: this is no line of the log: {e}")),
            Ok(read) if read.seq != self.seq + 1 => {
                self.problem(format!("{place}: line {} follows line {}", read.seq, self.seq));
                self.seq = read.seq;
            }
            Ok(read) => {
                if read.prev != self.hash {
                    self.problem(format!("{place}: line {} was changed, or the one after it", self.seq));
                }
                self.seq = read.seq;
            }
        }
        if let Some(known) = self.known.filter(|known| known.seq == self.seq) {
            self.met = true;
            if known.hash != hash {
                self.problem(format!("{place}: this line was changed after it was written"));
            }
        }
        self.hash = hash;
    }

    fn end(&mut self) {
        if let Some(known) = self.known.filter(|_| !self.met) {
            let (last, written) = (self.seq, known.seq);
            self.problem(format!(
                "the log was cut: it ends with line {last}, and line {written} was written"
            ));
        }
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(text);
        }
    }
}
