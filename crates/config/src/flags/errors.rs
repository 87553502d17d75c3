//! Errors of a command line, an environment or a file, and notices about accepted ones.

use super::advice::{instead, program_of};

/// To be logged once there is a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    UsedVariable {
        name: String,
        value: String,
    },
    UnknownVariable {
        name: String,
        advice: Option<String>,
    },
    /// In a configuration file.
    UnknownKey {
        name: String,
        advice: Option<String>,
    },
    /// The file replaces command line and environment.
    UsedFile {
        path: String,
    },
    IgnoredFlag {
        name: String,
    },
    /// Accepted and checked, but without effect here.
    NoEffect {
        name: String,
        reason: &'static str,
    },
}

/// A command line that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("flag provided but not defined: -{}; {}", .0, instead(.0))]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(String),
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("invalid value \"{value}\" for flag -{name}: {reason}")]
    Value { name: String, value: String, reason: String },
    #[error("invalid boolean value \"{value}\" for -{name}: {reason}")]
    Switch { name: String, value: String, reason: String },
    #[error("\"{}\" is not a valid flag{}", .0, program_of(.0))]
    Positional(String),
    #[error("invalid value \"{value}\" for {variable}: {reason}")]
    Variable { variable: String, value: String, reason: String },
    #[error(
        "conflicting environment variable \"{0}\" is shadowed by corresponding command-line flag \
         (either unset environment variable or disable flag)"
    )]
    Shadowed(String),
    /// A value that can be read, and that etcd does not start with.
    #[error("{0}")]
    Refused(String),
}

impl FlagError {
    /// A value of a configuration file, with etcd's texts where it has one for the key.
    pub(super) fn in_file(name: &str, value: &str, reason: &str) -> FlagError {
        FlagError::Refused(match name {
            "feature-gates" => reason.to_owned(),
            "initial-cluster-state" => format!("unexpected clusterState {value:?}"),
            name if name.ends_with("-urls") => format!("unexpected error setting up {name}: {reason}"),
            name => format!("error unmarshaling the configuration file: {name}: {value:?}: {reason}"),
        })
    }

    /// Returns Go's exit code: 2 for a syntax error, 1 for an invalid combination or value.
    pub fn exit_code(&self) -> u8 {
        match self {
            FlagError::Unknown(_)
            | FlagError::NeedsArgument(_)
            | FlagError::Syntax(_)
            | FlagError::Value { .. }
            | FlagError::Switch { .. } => 2,
            FlagError::Positional(_)
            | FlagError::Variable { .. }
            | FlagError::Shadowed(_)
            | FlagError::Refused(_) => 1,
        }
    }
}
