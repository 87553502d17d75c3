//! etcd flags without effect in this server. They are validated, and produce a warning.
//!
//! Invalid values are rejected with etcd's error texts, so that both servers catch the same typos.

use super::gates;
use super::values::{duration, signed, switch, unsigned};

/// Flags that etcd itself accepts and ignores.
pub const IGNORED: [&str; 13] = [
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-election-timeout",
    "peer-heartbeat-interval",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
];

/// A flag without effect.
#[derive(Debug)]
pub struct AcceptedFlag {
    pub name: &'static str,
    pub kind: Kind,
    /// Reason for the lack of an effect, used in the warning.
    pub reason: &'static str,
}

/// Type of the flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Switch,
    Signed,
    Unsigned,
    Duration,
    Text,
    Gates,
    OneOf(&'static [&'static str]),
}

impl AcceptedFlag {
    pub fn find(name: &str) -> Option<&'static AcceptedFlag> {
        ACCEPTED.iter().find(|accepted| accepted.name == name)
    }

    /// Validates dependencies between parts of the value, as etcd does at startup.
    pub fn verify(&self, value: &str) -> Result<(), String> {
        match self.name {
            "feature-gates" => gates::verify(&gates::parse(value)?),
            _ => Ok(()),
        }
    }

    /// Returns the warnings for the value: a flag or gate, and the reason why it has no effect.
    pub fn warnings(&self, value: &str) -> Vec<(String, &'static str)> {
        match self.name {
            "feature-gates" => {
                let gates = gates::parse(value).unwrap_or_default();
                let warning = |(gate, _)| Some((format!("feature-gates {gate}"), gates::no_effect(gate)?));
                gates.into_iter().filter_map(warning).collect()
            }
            _ => vec![(self.name.to_owned(), self.reason)],
        }
    }

    /// Reports whether parts of the value may have an effect.
    pub fn has_effect(&self) -> bool {
        self.kind == Kind::Gates
    }

    /// Validates the syntax of the value.
    pub fn check(&self, value: &str) -> Result<(), String> {
        match self.kind {
            Kind::Switch => switch(value).map(drop).map_err(str::to_owned),
            Kind::Signed => signed(value).map(drop).map_err(str::to_owned),
            Kind::Unsigned => unsigned(value).map(drop).map_err(str::to_owned),
            Kind::Duration => duration(value).map(drop).map_err(str::to_owned),
            Kind::Text => Ok(()),
            Kind::Gates => gates::parse(value).map(drop),
            Kind::OneOf(values) if values.contains(&value) => Ok(()),
            Kind::OneOf(_) => Err(format!("invalid value {value:?}")),
        }
    }
}

const fn flag(name: &'static str, kind: Kind, reason: &'static str) -> AcceptedFlag {
    AcceptedFlag { name, kind, reason }
}

const NO_BBOLT: &str =
    "the store is not a bbolt file; checkpoints depend on --snapshot-count and the changes in memory";
const NO_BATCHES: &str = "a compaction yields to requests without pauses of a fixed length";
const OWN_DEADLINES: &str = "peer connections detect an unresponsive peer by pings, within 4 s";

pub const ACCEPTED: [AcceptedFlag; 17] = [
    flag("backend-batch-interval", Kind::Duration, NO_BBOLT),
    flag("backend-batch-limit", Kind::Signed, NO_BBOLT),
    flag("backend-bbolt-freelist-type", Kind::Text, NO_BBOLT),
    flag(
        "bootstrap-defrag-threshold-megabytes",
        Kind::Unsigned,
        "Skipping defragmentation: space is reused without it",
    ),
    flag("compaction-batch-limit", Kind::Signed, NO_BATCHES),
    flag("compaction-sleep-interval", Kind::Duration, NO_BATCHES),
    flag("downgrade-check-time", Kind::Duration, "there is no older format to downgrade to"),
    flag(
        "feature-gates",
        Kind::Gates,
        "two gates have an effect; the warning states the reason for each other gate",
    ),
    flag("initial-election-tick-advance", Kind::Switch, "the first election timeout is never shortened"),
    flag(
        "max-snapshots",
        Kind::Unsigned,
        "the store has one checkpoint, which is updated in place; --max-snapshots is deprecated in 3.6 and \
         will be decommissioned in 3.8",
    ),
    flag("max-wals", Kind::Unsigned, "log segments are deleted once a checkpoint covers them"),
    flag("memory-mlock", Kind::Switch, "the store maps no file into memory; disable swap instead"),
    flag("pre-vote", Kind::Switch, "pre-vote is always on"),
    flag("raft-read-timeout", Kind::Duration, OWN_DEADLINES),
    flag("raft-write-timeout", Kind::Duration, OWN_DEADLINES),
    flag("unsafe-no-fsync", Kind::Switch, "every acknowledged write is synced"),
    flag(
        "v2-deprecation",
        Kind::OneOf(&["write-only", "write-only-drop-data", "gone"]),
        "there is no store of etcd's API version 2; --v2-deprecation is deprecated and scheduled for removal \
         in v3.8. The default value is enforced, ignoring user input",
    ),
];
