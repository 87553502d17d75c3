//! Parses a command line and an environment into names and values.
//!
//! Rejects a value that is not UTF-8: with replacement characters a path would name another file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::accepted::{AcceptedFlag, IGNORED, Kind};
use super::advice::{VARIABLE_PREFIX, advice, as_variable};
use super::declarations::{command, shown};
use super::errors::{FlagError, Notice};

const NOT_UTF_8: &str = "not valid UTF-8";

/// One flag with its value, as it will be handed to clap.
pub struct Assignment {
    pub name: String,
    pub value: Option<String>,
    /// Without effect, or with a part that has none.
    pub accepted: Option<&'static AcceptedFlag>,
}

pub enum Arguments {
    Given(Vec<Assignment>),
    /// Help was requested, for all flags or the common ones.
    Help {
        is_all: bool,
    },
}

/// The pre-pass from Go's spelling to clap's.
pub fn read_arguments(
    arguments: impl IntoIterator<Item = OsString>,
    notices: &mut Vec<Notice>,
) -> Result<Arguments, FlagError> {
    let mut given = Vec::new();
    let mut arguments = arguments.into_iter().map(Text::of);
    while let Some(Text { shown: argument, mut is_exact }) = arguments.next() {
        if argument == "--" {
            break;
        }
        let Some(body) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            return Err(FlagError::Positional(argument));
        };
        if body.is_empty() || body.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(argument));
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        if let "h" | "help" | "help-all" = name {
            return Ok(Arguments::Help { is_all: name == "help-all" });
        }
        let kind = flag_kind(name)?;
        let (accepted, is_switch) = (kind.accepted(), kind.is_switch());
        if let FlagKind::Ignored = kind {
            notices.push(Notice::IgnoredFlag { name: name.to_owned() });
            continue;
        }
        let value = match value {
            None if !is_switch => {
                let next = arguments.next().ok_or_else(|| FlagError::NeedsArgument(name.to_owned()))?;
                is_exact = next.is_exact;
                Some(next.shown)
            }
            value => value,
        };
        if let Some(value) = &value {
            if !is_exact {
                return Err(refused(name, &shown(name, value), NOT_UTF_8.to_owned(), is_switch));
            }
            let checked = accepted.map_or(Ok(()), |accepted| accepted.check(value));
            checked.map_err(|reason| refused(name, value, reason, is_switch))?;
        }
        given.push(Assignment { name: name.to_owned(), value, accepted });
    }
    if let Some(extra) = arguments.next() {
        return Err(FlagError::Positional(extra.shown));
    }
    Ok(Arguments::Given(given))
}

/// A value, converted to UTF-8 where possible.
struct Text {
    /// With `\xff` in place of each byte that belongs to no character.
    shown: String,
    is_exact: bool,
}

impl Text {
    fn of(given: OsString) -> Text {
        given.into_string().map_or_else(Text::escaped, |shown| Text { shown, is_exact: true })
    }

    fn escaped(given: OsString) -> Text {
        let mut shown = String::new();
        for chunk in given.as_bytes().utf8_chunks() {
            shown.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
        }
        Text { shown, is_exact: false }
    }
}

pub enum FlagKind {
    Value,
    Switch,
    Accepted(&'static AcceptedFlag),
    Ignored,
}

impl FlagKind {
    pub fn accepted(&self) -> Option<&'static AcceptedFlag> {
        match self {
            FlagKind::Accepted(accepted) => Some(accepted),
            FlagKind::Value | FlagKind::Switch | FlagKind::Ignored => None,
        }
    }

    fn is_switch(&self) -> bool {
        match self {
            FlagKind::Switch => true,
            FlagKind::Accepted(accepted) => accepted.kind == Kind::Switch,
            FlagKind::Value | FlagKind::Ignored => false,
        }
    }
}

pub fn flag_kind(name: &str) -> Result<FlagKind, FlagError> {
    // First: a part of it may have an effect, and then it is one of `Flags` as well.
    if let Some(accepted) = AcceptedFlag::find(name) {
        return Ok(FlagKind::Accepted(accepted));
    }
    if let Some(argument) = command().get_arguments().find(|known| known.get_long() == Some(name)) {
        // Only switches say how many values they take: none, or one.
        let is_switch = argument.get_num_args().is_some();
        return Ok(if is_switch { FlagKind::Switch } else { FlagKind::Value });
    }
    if IGNORED.contains(&name) {
        return Ok(FlagKind::Ignored);
    }
    Err(FlagError::Unknown(name.to_owned()))
}

/// Variables that do not name a flag: the version to run, and the checks that etcd runs on itself.
pub const NOT_FOR_US: [&str; 3] = ["version", "verify", "unsupported-arch"];

/// Reads `ETCD_DATA_DIR` as `--data-dir`, and so on. An empty variable counts as unset. If a flag or a
/// variable names a configuration file, all variables are ignored except that one, as in etcd.
pub fn read_environment(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    given: &mut Vec<Assignment>,
    notices: &mut Vec<Notice>,
) -> Result<(), FlagError> {
    const FILE: &str = "config-file";
    let file = given.iter().rfind(|flag| flag.name == FILE).and_then(|flag| flag.value.as_deref());
    if file.is_some_and(|file| !file.is_empty()) {
        return Ok(());
    }
    let mut environment: Vec<_> = environment.into_iter().collect();
    let names_file = |(name, value): &(OsString, OsString)| name == "ETCD_CONFIG_FILE" && !value.is_empty();
    if environment.iter().any(names_file) {
        environment.retain(names_file);
    }
    let said = given.len();
    for (variable, value) in environment {
        let (Text { shown: variable, .. }, Text { shown: value, is_exact }) =
            (Text::of(variable), Text::of(value));
        let Some(suffix) = variable.strip_prefix(VARIABLE_PREFIX).filter(|_| !value.is_empty()) else {
            continue;
        };
        let name = suffix.to_lowercase().replace('_', "-");
        if NOT_FOR_US.contains(&name.as_str()) {
            continue;
        }
        let kind = flag_kind(&name);
        let accepted = kind.as_ref().ok().and_then(FlagKind::accepted);
        match kind {
            Ok(FlagKind::Value | FlagKind::Switch | FlagKind::Accepted(_))
                // A flag with a file name is not empty, and variables are ignored then.
                if name != FILE && given[..said].iter().any(|flag| flag.name == name) =>
            {
                return Err(FlagError::Shadowed(variable));
            }
            Ok(FlagKind::Value | FlagKind::Switch | FlagKind::Accepted(_)) => {
                if !is_exact {
                    let (value, reason) = (shown(&name, &value), NOT_UTF_8.to_owned());
                    return Err(FlagError::Variable { variable, value, reason });
                }
                if let Some(Err(reason)) = accepted.map(|accepted| accepted.check(&value)) {
                    return Err(FlagError::Variable { variable, value, reason });
                }
                notices.push(Notice::UsedVariable { name: variable, value: shown(&name, &value) });
                given.push(Assignment { name, value: Some(value), accepted });
            }
            Ok(FlagKind::Ignored) => notices.push(Notice::IgnoredFlag { name }),
            Err(_) => {
                let advice = advice(&name, as_variable);
                notices.push(Notice::UnknownVariable { name: variable, advice });
            }
        }
    }
    Ok(())
}

/// A value of a command line, in Go's words.
pub fn refused(name: &str, value: &str, reason: String, is_switch: bool) -> FlagError {
    let (name, value) = (name.to_owned(), value.to_owned());
    if is_switch {
        FlagError::Switch { name, value, reason }
    } else {
        FlagError::Value { name, value, reason }
    }
}
