//! How a process ended, and the words for it.

use std::borrow::Cow;

use nix::sys::signal::Signal;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With an exit code.
    Code(i32),
    /// By a signal; a number, since the C library has no names for real-time signals.
    Signal(i32),
}

impl Exit {
    /// Exit code, or -1 where a signal ended it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(_) => -1,
        }
    }

    /// Name of the signal that ended it, such as `SIGKILL`.
    pub(crate) fn signal_name(self) -> Option<String> {
        match self {
            Self::Code(_) => None,
            Self::Signal(number) => Some(match Signal::try_from(number) {
                Ok(signal) => signal.as_str().to_owned(),
                Err(_) => format!("SIG{number}"),
            }),
        }
    }

    /// The sentence that clients of the sandbox API know, such as `exit status 7` and `signal: killed`.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Code(code) => format!("exit status {code}"),
            Self::Signal(number) => format!("signal: {}", signal_words(number)),
        }
    }
}

fn signal_words(number: i32) -> Cow<'static, str> {
    let words = match number {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        _ => return format!("signal {number}").into(),
    };
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(Exit::Code(7).describe(), "exit status 7");
        assert_eq!(Exit::Signal(9).describe(), "signal: killed");
        assert_eq!((Exit::Signal(9).code(), Exit::Signal(9).signal_name()), (-1, Some("SIGKILL".into())));
        assert_eq!(Exit::Signal(40).signal_name(), Some("SIG40".into()));
    }
}
