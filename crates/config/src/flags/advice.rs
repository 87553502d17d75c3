//! Replacements for names that are no flags: removed flags of etcd, misspelt ones, commands of etcd's tools.

use clap::error::{ContextKind, ContextValue};

use super::accepted::AcceptedFlag;
use super::declarations::command;
use super::gates;

/// The start of the name of each environment variable that is read.
pub const VARIABLE_PREFIX: &str = "ETCD_";

/// Flags that etcd had before 3.6: the version that removed each, and its replacement if it has one.
const REMOVED: [(&str, &str, Option<&str>); 13] = [
    ("ca-file", "3.4", Some("trusted-ca-file")),
    ("debug", "3.5", Some("log-level=debug")),
    ("enable-v2", "3.6", None),
    ("experimental-enable-v2v3", "3.6", None),
    ("log-output", "3.5", Some("log-outputs")),
    ("log-package-levels", "3.5", Some("log-level")),
    ("peer-ca-file", "3.4", Some("peer-trusted-ca-file")),
    ("proxy", "3.6", None),
    ("proxy-dial-timeout", "3.6", None),
    ("proxy-failure-wait", "3.6", None),
    ("proxy-read-timeout", "3.6", None),
    ("proxy-refresh-interval", "3.6", None),
    ("proxy-write-timeout", "3.6", None),
];

/// Edits between a misspelt name and the flag that is suggested for it.
const TYPOS_MAX: usize = 2;

/// Spells a flag, or `NAME=VALUE`, as on the command line.
pub fn as_flag(flag: &str) -> String {
    format!("--{flag}")
}

/// Spells a flag, or `NAME=VALUE`, as an environment variable.
pub fn as_variable(flag: &str) -> String {
    let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
    format!("{VARIABLE_PREFIX}{}{value}", name.to_uppercase().replace('-', "_"))
}

/// Spells a flag, or `NAME=VALUE`, as a line of a configuration file.
pub fn as_key(flag: &str) -> String {
    flag.replacen('=', ": ", 1)
}

/// Returns what to do about a name that is no flag: the replacement of a removed flag of etcd, or a flag with
/// nearly the same name. `spell` spells a flag where the name was read.
pub fn advice(name: &str, spell: fn(&str) -> String) -> Option<String> {
    if let Some((_, version, instead)) = REMOVED.iter().find(|(removed, ..)| *removed == name) {
        let todo = instead.map_or_else(|| "delete it".to_owned(), |flag| format!("write {}", spell(flag)));
        return Some(format!("removed in etcd {version}: {todo}"));
    }
    if let Some(rest) = name.strip_prefix("experimental-") {
        let gate = rest.replace("-enabled", "").replace('-', "");
        let gate = gate.trim_start_matches("enable");
        if let Some((name, _)) = gates::GATES.iter().find(|(name, _)| name.eq_ignore_ascii_case(gate)) {
            return Some(format!("write {}", spell(&format!("feature-gates={name}=true"))));
        }
        let is_flag = command().get_arguments().any(|flag| flag.get_long() == Some(rest));
        return (is_flag || AcceptedFlag::find(rest).is_some()).then(|| format!("write {}", spell(rest)));
    }
    let nearest = nearest(name)?;
    Some(format!("did you mean {}?", spell(&nearest)))
}

/// The flag that has this name but for a few typos, or that starts with it.
fn nearest(name: &str) -> Option<String> {
    // clap suggests similar flags, including some that are not similar enough.
    let refused = command().no_binary_name(true).try_get_matches_from([format!("--{name}")]);
    match refused.as_ref().err().and_then(|error| error.get(ContextKind::SuggestedArg)) {
        Some(ContextValue::String(found)) => {
            let found = found.trim_start_matches('-');
            let is_near = found.starts_with(name) || edits(name, found) <= TYPOS_MAX;
            is_near.then(|| found.to_owned())
        }
        _ => None,
    }
}

/// Characters to insert, delete or replace to turn one name into another.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (at, character) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(character != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[row.len() - 1]
}

/// Returns the replacement for a subcommand of etcd, etcdctl or etcdutl.
pub fn program_of(word: &str) -> String {
    const ETCDCTL: [&str; 16] = [
        "alarm",
        "auth",
        "del",
        "elect",
        "endpoint",
        "get",
        "lease",
        "lock",
        "make-mirror",
        "move-leader",
        "put",
        "role",
        "txn",
        "user",
        "watch",
        "check",
    ];
    match word {
        "gateway" | "grpc-proxy" => {
            format!(": run `etcd {word} start`, of etcd, in front of the members")
        }
        "snapshot" => ": save with `etcdctl snapshot save FILE`, restore with `kvctl restore --from FILE`, \
                       inspect with `etcdutl snapshot status FILE`"
            .to_owned(),
        "defrag" => ": space is reused without it; `etcdctl defrag` does it immediately".to_owned(),
        "compact" | "compaction" => ": run `etcdctl compact REVISION`".to_owned(),
        "hashkv" => ": run `etcdctl endpoint hashkv`".to_owned(),
        "version" => ": run `kv-server --version`".to_owned(),
        "help" => ": run `kv-server --help`, or `kv-server COMMAND --help`".to_owned(),
        word if ETCDCTL.contains(&word) => format!(": run `etcdctl {word}`"),
        _ => "; flags start with --; kv-server --help lists the commands".to_owned(),
    }
}

/// Returns a suggestion for an unknown flag.
pub fn instead(name: &str) -> String {
    advice(name, as_flag).unwrap_or_else(|| "kv-server --help-all lists all flags".to_owned())
}
