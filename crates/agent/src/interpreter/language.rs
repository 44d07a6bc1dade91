//! The languages of kept interpreters: which program of the image, and what it is made to run.

/// What an interpreter evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Language {
    /// The image's `python3`.
    Python,
    /// The image's `node`.
    JavaScript,
    /// The image's `bash`.
    Bash,
}

impl Language {
    /// By the names that callers use.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Some(Self::Python),
            "javascript" | "js" | "node" => Some(Self::JavaScript),
            "bash" | "sh" | "shell" => Some(Self::Bash),
            _ => None,
        }
    }

    /// As it is told to callers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Bash => "bash",
        }
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::JavaScript => "node",
            Self::Bash => "bash",
        }
    }

    /// Arguments with which the program runs [`Self::kernel`] from descriptor 5, with nothing long in `ps`.
    pub(super) fn args(self) -> Vec<String> {
        let args: &[&str] = match self {
            Self::Python => {
                &["-c", "exec(compile(open(5).read(),'<forkd kernel>','exec'),{'__name__':'forkd_kernel'})"]
            }
            Self::JavaScript => &["-e", "eval(require('fs').readFileSync(5, 'utf8'))"],
            Self::Bash => &["--noprofile", "--norc", "/dev/fd/5"],
        };
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    /// The interpreter's own program.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            Self::Python => include_str!("../../../../guest/kernel.py"),
            Self::JavaScript => include_str!("../../../../guest/kernel.js"),
            Self::Bash => include_str!("../../../../guest/kernel.sh"),
        }
    }

    /// What it loads once results are to be shown.
    pub(super) fn rich(self) -> &'static str {
        match self {
            Self::Python => include_str!("../../../../guest/rich.py"),
            Self::JavaScript | Self::Bash => "",
        }
    }
}
