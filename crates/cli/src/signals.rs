//! Signals by the names that agents use for them.

/// As E2B's agent words them (the texts of Go's `syscall.Signal`), and the constants' names.
const NAMES: &[(u8, &str, &str)] = &[
    (1, "hangup", "SIGHUP"),
    (2, "interrupt", "SIGINT"),
    (3, "quit", "SIGQUIT"),
    (4, "illegal instruction", "SIGILL"),
    (5, "trace/breakpoint trap", "SIGTRAP"),
    (6, "aborted", "SIGABRT"),
    (7, "bus error", "SIGBUS"),
    (8, "floating point exception", "SIGFPE"),
    (9, "killed", "SIGKILL"),
    (10, "user defined signal 1", "SIGUSR1"),
    (11, "segmentation fault", "SIGSEGV"),
    (12, "user defined signal 2", "SIGUSR2"),
    (13, "broken pipe", "SIGPIPE"),
    (14, "alarm clock", "SIGALRM"),
    (15, "terminated", "SIGTERM"),
    (16, "stack fault", "SIGSTKFLT"),
    (24, "CPU time limit exceeded", "SIGXCPU"),
    (25, "file size limit exceeded", "SIGXFSZ"),
    (26, "virtual timer expired", "SIGVTALRM"),
    (27, "profiling timer expired", "SIGPROF"),
    (29, "I/O possible", "SIGIO"),
    (30, "power failure", "SIGPWR"),
    (31, "bad system call", "SIGSYS"),
];

/// The number of a signal; 0 where the name is unknown. `signal 34`, `SIG34` and ` (core dumped)` are understood.
pub(crate) fn number(name: &str) -> u8 {
    let name = name.trim_end_matches(" (core dumped)");
    let known = NAMES.iter().find(|(_, text, constant)| *text == name || *constant == name);
    let bare = || name.strip_prefix("signal ").or_else(|| name.strip_prefix("SIG"))?.parse().ok();
    known.map(|(n, ..)| *n).or_else(bare).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds_are_known() {
        assert_eq!(number("killed"), 9);
        assert_eq!(number("SIGTERM"), 15);
        assert_eq!(number("segmentation fault (core dumped)"), 11);
        assert_eq!(number("signal 34"), 34);
        assert_eq!(number("SIG34"), 34);
        assert_eq!(number("signal 999"), 0);
        assert_eq!(number("?"), 0);
    }
}
