//! Reasons to exit without a result; they determine the exit status.

#[derive(Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The command line is invalid: exit status 2.
    CommandLine(String),
    /// A run failed: exit status 1.
    Run(String),
    /// A signal arrived before there was a result: exit status 130.
    Interrupted(String),
}

impl From<String> for ExitReason {
    fn from(reason: String) -> Self {
        Self::Run(reason)
    }
}

/// Marks an error as one of the command line.
pub fn of_flags<T>(read: Result<T, String>) -> Result<T, ExitReason> {
    read.map_err(ExitReason::CommandLine)
}
