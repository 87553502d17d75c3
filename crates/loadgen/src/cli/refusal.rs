//! Why the program ends without a result: the exit status depends on it.

/// A reason to end.
#[derive(Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The command line makes no sense: exit status 2, as for a flag that does not exist.
    CommandLine(String),
    /// A run could not begin or end: exit status 1.
    Run(String),
    /// A signal ended the program before there was anything to report: exit status 130.
    Interrupted(String),
}

impl ExitReason {
    pub fn reason(self) -> String {
        match self {
            Self::CommandLine(reason) | Self::Run(reason) | Self::Interrupted(reason) => reason,
        }
    }
}

impl From<String> for ExitReason {
    fn from(reason: String) -> Self {
        Self::Run(reason)
    }
}

/// The result of reading flags.
pub fn of_flags<T>(read: Result<T, String>) -> Result<T, ExitReason> {
    read.map_err(ExitReason::CommandLine)
}
