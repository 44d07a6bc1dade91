//! The files of the log: `audit-<number of its first line>.jsonl`, so that their order is that of their names.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Line, hash_of};

/// Longest line that is read.
pub(super) const LONGEST_LINE: u64 = 1 << 20;
/// Where the end of a file is looked for its last lines.
const TAIL: u64 = 4 << 20;

/// The path of the file that begins with line `seq`.
pub(super) fn path_of(folder: &Path, seq: u64) -> PathBuf {
    folder.join(format!("audit-{seq:020}.jsonl"))
}

/// All files, oldest first.
pub(super) fn all(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.starts_with("audit-") && name.ends_with(".jsonl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Number and hash of the last whole line of a file, and how many bytes come before a torn one. `None` where it has none.
pub(super) fn end_of(path: &Path) -> io::Result<(Option<(u64, String)>, u64)> {
    let (text, from) = tail(path)?;
    let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let last = text[..whole].strip_suffix(b"\n").and_then(|text| text.rsplit(|b| *b == b'\n').next());
    let last = last.and_then(|line| Some((serde_json::from_slice::<Line>(line).ok()?.seq, hash_of(line))));
    Ok((last, from + whole as u64))
}

fn tail(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    Ok((text, from))
}

/// The newest lines after number `after`, oldest first, at most `limit`.
pub(crate) fn newest(folder: &Path, after: u64, limit: usize) -> io::Result<Vec<Line>> {
    let mut found: Vec<Line> = Vec::new();
    for path in all(folder)?.into_iter().rev() {
        let (text, _) = tail(&path)?;
        let lines = text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
        let mut lines: Vec<Line> = lines.filter(|line| line.seq > after).collect();
        let done =
            lines.len() + found.len() >= limit || lines.first().is_none_or(|line| line.seq <= after + 1);
        lines.append(&mut found);
        found = lines;
        if done {
            break;
        }
    }
    Ok(found.split_off(found.len().saturating_sub(limit)))
}

/// Calls `see` with every whole line of a file and its number in it, and with what is left of a torn one.
pub(super) fn each_line(path: &Path, mut see: impl FnMut(usize, &[u8], bool)) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let whole = line.ends_with(b"\n");
        see(number, line.strip_suffix(b"\n").unwrap_or(&line), whole);
    }
    Ok(())
}
