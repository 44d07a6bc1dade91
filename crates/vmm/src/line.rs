//! A line of text that is made without allocating.

/// Longest line.
const LONGEST: usize = 128;

/// What was written to it so far; more than fits is an error, and then cut.
#[derive(Debug)]
pub(crate) struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LONGEST], length: 0 }
    }
}

impl Line {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
