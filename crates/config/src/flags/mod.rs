//! The command line and the environment, spelled as etcd spells them.
//!
//! ```text
//!   -name v | --name v | --name=v ──┐
//!   ETCD_NAME=v ────────────────────┴──▶ --name=v ──▶ clap ──▶ Flags
//! ```
//!
//! * Go's flag rules hold: one dash or two, a repeated flag overrides, a switch takes its value after `=`.
//! * A flag of etcd's without effect here is checked and warned about once.
//! * A flag and its environment variable together are an error: which one is used would be a guess.
//! * A value that is not UTF-8 is rejected: with replacement characters a path would name another file.
//!
//! Handles texts and their types; `settings` interprets the values together.

mod advice; // what to write in place of an unknown name
mod errors; // what cannot be followed, and what is logged
mod values; // texts of values

mod accepted; // flags without effect here
mod gates; // --feature-gates

mod file; // --config-file

mod declarations; // every flag, as clap reads it

mod assignments; // of the command line and the environment

pub(super) use declarations::{BCRYPT_COST, SNAPSHOT_CATCH_UP_ENTRIES, SNAPSHOT_COUNT, TOKEN_TTL_SECONDS};
pub use declarations::{ClusterState, DiscoveryFallback, Flags, TlsFlags, TraceFlags, command, shown};
pub use errors::{FlagError, Notice};
pub use file::read as read_file;
pub use gates::{FeatureGate, all as feature_gates, is_gate_on};

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};

use accepted::AcceptedFlag;
use advice::VARIABLE_PREFIX;
use assignments::{Arguments, Assignment, FlagKind, flag_kind, read_arguments, read_environment, refused};
pub(super) use values::duration;

/// Result of successful parsing.
#[derive(Clone, Debug)]
pub enum ParsedFlags {
    Flags(Box<Flags>, Vec<Notice>),
    /// Usage is to be printed before a successful exit: with all flags, or with the common ones.
    Help {
        is_all: bool,
    },
}

/// Reads arguments (without the program's name) and environment.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<ParsedFlags, FlagError> {
    let mut notices = Vec::new();
    let mut given = match read_arguments(arguments, &mut notices)? {
        Arguments::Given(given) => given,
        Arguments::Help { is_all } => return Ok(ParsedFlags::Help { is_all }),
    };
    let from_flags = given.len();
    read_environment(environment, &mut given, &mut notices)?;
    note_accepted(&given, &mut notices)?;
    let flags = flags_of(&given).map_err(|error| value_error(&error, &given[from_flags..]))?;
    Ok(ParsedFlags::Flags(Box::new(flags), notices))
}

/// Parses a configuration file. It replaces command line and environment, as in etcd.
pub fn parse_file(text: &str) -> Result<(Flags, Vec<Notice>), FlagError> {
    let (mut given, mut notices) = (Vec::new(), Vec::new());
    for (name, value) in file::assignments(text).map_err(FlagError::Refused)? {
        let kind = match name.as_str() {
            // Accepted by etcd on the command line only.
            "discovery-fallback" => continue,
            "version" | "config-file" => Err(FlagError::Unknown(name.clone())),
            known => flag_kind(known),
        };
        match kind {
            Ok(FlagKind::Ignored) => notices.push(Notice::IgnoredFlag { name }),
            Ok(kind) => {
                let accepted = kind.accepted();
                if let Some(Err(reason)) = accepted.map(|accepted| accepted.check(&value)) {
                    return Err(FlagError::in_file(&name, &value, &reason));
                }
                given.push(Assignment { name, value: Some(value), accepted });
            }
            Err(FlagError::Unknown(_)) => {
                let advice = advice::advice(&name, advice::as_key);
                notices.push(Notice::UnknownKey { name, advice });
            }
            Err(error) => return Err(error),
        }
    }
    note_accepted(&given, &mut notices)?;
    let flags = flags_of(&given).map_err(|error| {
        let (name, value, reason) = refused_value(&error);
        FlagError::in_file(&name, &value, &reason)
    })?;
    Ok((flags, notices))
}

/// Reports whether an environment variable is that of a flag.
pub fn is_variable(name: &str) -> bool {
    let flag = name.strip_prefix(VARIABLE_PREFIX).map(|name| name.to_lowercase().replace('_', "-"));
    flag.is_some_and(|flag| flag_kind(&flag).is_ok() && !assignments::NOT_FOR_US.contains(&flag.as_str()))
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    Default,
    Flag,
    Variable,
    File,
}

/// One flag as it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub name: String,
    pub value: String,
    pub source: ValueSource,
}

/// Returns every flag with its value, by name: from `file` if there is one, else from arguments and
/// environment. Unset flags without effect are omitted.
pub fn effective(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    file: Option<&str>,
) -> Result<Vec<Effective>, FlagError> {
    let mut all: BTreeMap<String, (String, ValueSource)> = command()
        .get_arguments()
        .filter_map(|flag| {
            let default =
                flag.get_default_values().first().map_or(String::new(), |value| value.display().to_string());
            Some((flag.get_long()?.to_owned(), (default, ValueSource::Default)))
        })
        .collect();
    let mut notices = Vec::new();
    let mut put = |name: String, value: Option<String>, source| {
        if says_nothing(&name, value.as_deref()) {
            return;
        }
        all.insert(name, (value.unwrap_or_else(|| "true".to_owned()), source));
    };
    match file {
        Some(text) => {
            for (name, value) in file::assignments(text).map_err(FlagError::Refused)? {
                put(name, Some(value), ValueSource::File);
            }
        }
        None => {
            let Arguments::Given(mut given) = read_arguments(arguments, &mut notices)? else {
                return Ok(Vec::new());
            };
            let said = given.len();
            read_environment(environment, &mut given, &mut notices)?;
            for (at, Assignment { name, value, .. }) in given.into_iter().enumerate() {
                put(name, value, if at < said { ValueSource::Flag } else { ValueSource::Variable });
            }
        }
    }
    let row = |(name, (value, source))| Effective { name, value, source };
    Ok(all.into_iter().map(row).collect())
}

/// Reports whether the value is an empty URL list, which keeps the default, as in etcd.
fn says_nothing(name: &str, value: Option<&str>) -> bool {
    const URLS: [&str; 4] =
        ["listen-peer-urls", "initial-advertise-peer-urls", "listen-client-urls", "advertise-client-urls"];
    value == Some("") && URLS.contains(&name)
}

fn flags_of(given: &[Assignment]) -> Result<Flags, clap::Error> {
    let line = given.iter().filter(|assignment| assignment.accepted.is_none_or(AcceptedFlag::has_effect));
    let line = line.filter(|assignment| !says_nothing(&assignment.name, assignment.value.as_deref()));
    let words = line.clone().map(|assignment| match &assignment.value {
        Some(value) => format!("--{}={value}", assignment.name),
        None => format!("--{}", assignment.name),
    });
    let matches = command().no_binary_name(true).try_get_matches_from(words)?;
    let flags = Flags::from_arg_matches(&matches).expect("clap has checked every value it hands over");
    Ok(Flags { given: line.map(|assignment| assignment.name.clone()).collect(), ..flags })
}

/// Warns of each flag without effect, once, by the value that counts: the last.
fn note_accepted(given: &[Assignment], notices: &mut Vec<Notice>) -> Result<(), FlagError> {
    for (at, assignment) in given.iter().enumerate() {
        let Some(accepted) = assignment.accepted else { continue };
        if given[at + 1..].iter().any(|later| later.name == assignment.name) {
            continue;
        }
        let value = assignment.value.as_deref().unwrap_or("true");
        accepted.verify(value).map_err(FlagError::Refused)?;
        let warnings = accepted.warnings(value).into_iter();
        notices.extend(warnings.map(|(name, reason)| Notice::NoEffect { name, reason }));
    }
    Ok(())
}

/// Flag, value and reason of clap's complaint.
fn refused_value(error: &clap::Error) -> (String, String, String) {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let name = argument.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    let value = text(ContextKind::InvalidValue);
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    (name, value, reason)
}

/// clap's complaint in Go's words.
fn value_error(error: &clap::Error, from_environment: &[Assignment]) -> FlagError {
    let (name, value, reason) = refused_value(error);
    if from_environment.iter().any(|assignment| assignment.name == name) {
        return FlagError::Variable { variable: advice::as_variable(&name), value, reason };
    }
    let is_switch = matches!(flag_kind(&name), Ok(FlagKind::Switch));
    refused(&name, &value, reason, is_switch)
}

#[cfg(test)]
mod tests;
