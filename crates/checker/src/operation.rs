//! Operations, their outcomes, and watch events.
//!
//! Keys are small numbers. Every put writes a unique number, so a value identifies its write.
//!
//! Must not depend on connections or time.

use std::fmt;
use std::time::Duration;

pub type Revision = i64;

/// Flag bit of keys that are attached to a lease.
pub const LEASED: u32 = 1 << 31;

#[derive(Clone, Copy)]
pub struct KeyName(pub u32);

impl fmt::Display for KeyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, number) = if self.0 & LEASED == 0 { ('k', self.0) } else { ('l', self.0 - LEASED) };
        write!(formatter, "{letter}{number}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    pub key: u32,
    pub value: u64,
    pub created: Revision,
    pub modified: Revision,
    pub version: i64,
    /// Id of the attached lease; 0 for none.
    pub lease: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub revision: Revision,
    pub key: u32,
    /// State after the change; `None` if the key was deleted.
    pub record: Option<KeyRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: u32,
    pub value: u64,
    /// Id of the lease to attach; 0 for none.
    pub lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A put, or several in a transaction.
    Put(Vec<Write>),
    Delete(u32),
    /// Put if the key's mod revision equals this one (0: the key does not exist); otherwise a read
    /// of it.
    Swap(Write, Revision),
    /// Read of all these keys.
    Read {
        keys: Vec<u32>,
        serializable: bool,
    },
    /// Range over these keys at a revision. A limit of 0 means no limit.
    Page {
        keys: Vec<u32>,
        limit: usize,
        /// `None`: the latest revision.
        revision: Option<Revision>,
    },
}

/// Outcome of a call, as the client observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Executed at this revision. `previous` holds the previous records of the keys, if returned.
    Written { revision: Revision, previous: Option<Vec<KeyRecord>> },
    /// Read result: the records at this revision. The request did not write.
    Found { revision: Revision, records: Vec<KeyRecord> },
    /// Range result, with the total key count and the `more` flag.
    Page { revision: Revision, records: Vec<KeyRecord>, count: i64, more: bool },
    /// The requested revision is compacted.
    Compacted,
    /// The call failed. The request may have been executed, or may still be.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    /// Sequence number in start order.
    pub number: u64,
    pub client: usize,
    /// Index of the endpoint that received it.
    pub member: usize,
    pub request: Request,
    /// Start and end time, relative to the start of the run.
    pub began: Duration,
    pub ended: Option<Duration>,
    pub outcome: Option<CallOutcome>,
}

impl Request {
    /// Returns the keys whose state a response may contain.
    pub fn keys(&self) -> Vec<u32> {
        match self {
            Request::Put(writes) => writes.iter().map(|write| write.key).collect(),
            Request::Delete(key) | Request::Swap(Write { key, .. }, _) => vec![*key],
            Request::Read { keys, .. } | Request::Page { keys, .. } => keys.clone(),
        }
    }

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

    /// Reports whether `changes`, all from the same revision, are the effect of this request.
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
                            && change.record.is_some_and(|record| {
                                (record.value, record.lease) == (write.value, write.lease)
                            })
                    })
                };
                changes.len() == writes.len() && writes.iter().all(made)
            }
        }
    }
}

impl ClientOperation {
    /// Returns one plus the number of keys and records held in memory.
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
                    .try_for_each(|Write { key, value, .. }| write!(formatter, " {}={value}", KeyName(*key)))
            }
            Request::Delete(key) => write!(formatter, "delete {}", KeyName(*key)),
            Request::Swap(Write { key, value, .. }, expected) => {
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
        let Self { key, value, created, modified, version, lease } = self;
        write!(
            formatter,
            "{}={value} (created {created}, modified {modified}, version {version}",
            KeyName(*key)
        )?;
        if *lease != 0 {
            write!(formatter, ", lease {lease:x}")?;
        }
        formatter.write_str(")")
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
