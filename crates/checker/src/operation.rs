//! Operations, their outcomes, and the changes that a watch shows.
//!
//! Keys are small numbers. Each put writes a number that no other put writes: a value identifies its write.
//!
//! Must not depend on connections or time.

use std::fmt;
use std::time::Duration;

pub type Revision = i64;

/// Set in the number of a key that is put with a lease.
pub const LEASED: u32 = 1 << 31;

/// A key as violations show it.
#[derive(Clone, Copy)]
pub struct KeyName(pub u32);

impl fmt::Display for KeyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, number) = if self.0 & LEASED == 0 { ('k', self.0) } else { ('l', self.0 - LEASED) };
        write!(formatter, "{letter}{number}")
    }
}

/// A key's value with its revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    pub key: u32,
    pub value: u64,
    pub created: Revision,
    pub modified: Revision,
    pub version: i64,
}

/// A change of one key at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub revision: Revision,
    pub key: u32,
    /// `None`: the key was deleted.
    pub record: Option<KeyRecord>,
}

/// A put of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: u32,
    pub value: u64,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// One put, or several in one transaction.
    Put(Vec<Write>),
    Delete(u32),
    /// A put if the key was last modified at this revision (0: if it does not exist); else a read of it.
    Swap(Write, Revision),
    /// All these keys.
    Read {
        keys: Vec<u32>,
        serializable: bool,
    },
    /// The first of these keys, or all of them where the limit is 0, as they were at a revision.
    Page {
        keys: Vec<u32>,
        limit: usize,
        /// `None`: the newest.
        revision: Option<Revision>,
    },
}

/// What a client knows after its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Executed at this revision. `previous` holds what the keys were before, if the answer says so.
    Written { revision: Revision, previous: Option<Vec<KeyRecord>> },
    /// What the keys of the request are at this revision; nothing was written.
    Found { revision: Revision, records: Vec<KeyRecord> },
    /// The same of a range, which says how many keys it has, and whether there are more than it shows.
    Page { revision: Revision, records: Vec<KeyRecord>, count: i64, more: bool },
    /// The revision that was asked for is compacted.
    Compacted,
    /// The call failed: the request may have been executed, or may be later.
    Unknown(String),
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    /// In the order in which operations began.
    pub number: u64,
    pub client: usize,
    /// The place of the endpoint that it was sent to.
    pub member: usize,
    pub request: Request,
    /// Since the start of the run, as `ended`.
    pub began: Duration,
    pub ended: Option<Duration>,
    pub outcome: Option<CallOutcome>,
}

impl Request {
    /// The keys whose state an answer may show.
    pub fn keys(&self) -> Vec<u32> {
        match self {
            Request::Put(writes) => writes.iter().map(|write| write.key).collect(),
            Request::Delete(key) | Request::Swap(Write { key, .. }, _) => vec![*key],
            Request::Read { keys, .. } | Request::Page { keys, .. } => keys.clone(),
        }
    }

    /// The values that it writes.
    pub fn writes(&self) -> &[Write] {
        match self {
            Request::Put(writes) => writes,
            Request::Swap(write, _) => std::slice::from_ref(write),
            Request::Delete(_) | Request::Read { .. } | Request::Page { .. } => &[],
        }
    }

    pub fn is_serializable(&self) -> bool {
        matches!(self, Request::Read { serializable: true, .. })
    }

    /// Whether these changes, all of one revision, are what it does when it is executed.
    pub fn makes(&self, changes: &[KeyChange]) -> bool {
        match self {
            Request::Delete(key) => {
                matches!(changes, [KeyChange { key: changed, record: None, .. }] if changed == key)
            }
            Request::Read { .. } | Request::Page { .. } => false,
            Request::Put(_) | Request::Swap(..) => {
                let writes = self.writes();
                let made = |write: &Write| {
                    changes.iter().any(|change| {
                        change.key == write.key
                            && change.record.is_some_and(|record| record.value == write.value)
                    })
                };
                changes.len() == writes.len() && writes.iter().all(made)
            }
        }
    }
}

impl ClientOperation {
    /// One, and the keys and records that it holds.
    pub fn size(&self) -> usize {
        let keys = match &self.request {
            Request::Read { keys, .. } | Request::Page { keys, .. } => keys.len(),
            Request::Put(_) | Request::Delete(_) | Request::Swap(..) => self.request.writes().len(),
        };
        let records = match &self.outcome {
            Some(CallOutcome::Found { records, .. } | CallOutcome::Page { records, .. }) => records.len(),
            Some(CallOutcome::Written { previous, .. }) => previous.as_ref().map_or(0, Vec::len),
            Some(CallOutcome::Unknown(_) | CallOutcome::Compacted) | None => 0,
        };
        1 + keys + records
    }
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Put(writes) => {
                formatter.write_str("put")?;
                writes
                    .iter()
                    .try_for_each(|Write { key, value }| write!(formatter, " {}={value}", KeyName(*key)))
            }
            Request::Delete(key) => write!(formatter, "delete {}", KeyName(*key)),
            Request::Swap(Write { key, value }, expected) => {
                write!(formatter, "put {}={value} if its mod revision is {expected}", KeyName(*key))
            }
            Request::Read { keys, serializable } => {
                let kind = if *serializable { "serializable" } else { "linearizable" };
                match keys[..] {
                    [key] => write!(formatter, "{kind} read of {}", KeyName(key)),
                    _ => write!(formatter, "{kind} read of {} keys", keys.len()),
                }
            }
            Request::Page { keys, limit, revision } => {
                write!(formatter, "linearizable read of {} keys", keys.len())?;
                revision.iter().try_for_each(|revision| write!(formatter, " at revision {revision}"))?;
                if *limit > 0 { write!(formatter, ", limit {limit}") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for KeyRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, created, modified, version } = self;
        write!(
            formatter,
            "{}={value} (created {created}, modified {modified}, version {version})",
            KeyName(*key)
        )
    }
}

impl fmt::Display for KeyChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.record {
            Some(record) => write!(formatter, "revision {}: {record}", self.revision),
            None => write!(formatter, "revision {}: {} deleted", self.revision, KeyName(self.key)),
        }
    }
}

impl fmt::Display for ClientOperation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, member, request, began, .. } = self;
        write!(formatter, "client {client}, member {member}, {:.6} s", began.as_secs_f64())?;
        if let Some(ended) = self.ended {
            write!(formatter, " to {:.6} s", ended.as_secs_f64())?;
        }
        write!(formatter, ": {request}: ")?;
        match &self.outcome {
            None => formatter.write_str("in flight"),
            Some(CallOutcome::Unknown(reason)) => write!(formatter, "unknown ({reason})"),
            Some(CallOutcome::Written { revision, previous }) => {
                write!(formatter, "written at revision {revision}")?;
                previous.iter().flatten().try_for_each(|record| write!(formatter, ", before {record}"))
            }
            Some(CallOutcome::Compacted) => formatter.write_str("refused as compacted"),
            Some(CallOutcome::Page { revision, records, count, more }) => {
                write!(formatter, "at revision {revision} found {count} keys, more: {more}:")?;
                records.iter().try_for_each(|record| write!(formatter, " {record}"))
            }
            Some(CallOutcome::Found { revision, records }) => {
                write!(formatter, "at revision {revision} found")?;
                if records.is_empty() {
                    return formatter.write_str(" nothing");
                }
                records.iter().try_for_each(|record| write!(formatter, " {record}"))
            }
        }
    }
}
