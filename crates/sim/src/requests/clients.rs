//! Clients: each asks for one thing at a time, of any member, and holds the answer against what it knows.
//!
//! * What a client is told is never older than what any client was told before it asked: that, and the truth about
//!   every revision, is strict serializability, because every answer carries its revision.
//! * A read gives what the oracle gives at that revision, whichever member and whichever history it is asked of.
//! * A request without an answer says nothing; its write may appear later.

use std::collections::BTreeMap;

use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use mvcc::Store;
use state_machine::{Failure, Outcome, command};

use super::draw::{Ask, Draw};
use crate::chance::{Chance, fold};
use crate::count::{Count, Report};
use crate::oracle::{Breach, Truth};
use crate::oracle::{Refusal, digest_of, is_change, revision_of, summary_of};
use crate::plan::Temper;

/// Names one request for ever.
pub(crate) type RequestId = u64;

enum Kinds {
    Write { digest: u64, count: Count },
    Read(RangeRequest),
}

struct Request {
    client: u64,
    member: u64,
    asked: u64,
    kind: Kinds,
    /// The newest revision that any client had been told of when this was asked.
    floor: i64,
}

/// What a member is handed.
pub(crate) enum Handed {
    Propose(Bytes),
    Read,
    /// To be read at once.
    Serializable(RangeRequest),
}

#[derive(Default)]
pub(crate) struct Clients {
    next: RequestId,
    open: BTreeMap<RequestId, Request>,
    newest_told: i64,
}

impl Clients {
    /// A new request of `client` to `member`.
    pub fn ask(
        &mut self,
        client: u64,
        member: u64,
        asked: u64,
        temper: &Temper,
        chance: &mut Chance,
    ) -> (RequestId, Handed) {
        self.next += 1;
        let id = self.next;
        let ask = Draw { temper, chance, id, newest: self.newest_told }.ask();
        let (kind, handed) = match ask {
            Ask::Write(kind) => {
                let count = match kind {
                    command::Kind::Put(_) => Count::Puts,
                    command::Kind::DeleteRange(_) => Count::Deletes,
                    _ => Count::Txns,
                };
                let bytes = numbered(command::encode(kind), id);
                (Kinds::Write { digest: fold(0, &bytes), count }, Handed::Propose(bytes))
            }
            Ask::Read(range) => (Kinds::Read(range), Handed::Read),
            Ask::Serializable(range) => return (id, Handed::Serializable(range)),
        };
        self.open.insert(id, Request { client, member, asked, kind, floor: self.newest_told });
        (id, handed)
    }

    /// When an open request was asked.
    pub fn asked_at(&self, id: RequestId) -> Option<u64> {
        self.open.get(&id).map(|request| request.asked)
    }

    /// A write was answered after the entry at `index` was applied. Returns the client.
    pub fn write_answered(
        &mut self,
        id: RequestId,
        outcome: &Outcome,
        index: u64,
        truth: &Truth,
        report: &mut Report,
    ) -> Result<u64, Breach> {
        let request = self.open.remove(&id).ok_or("a write was answered twice")?;
        let Kinds::Write { digest, count } = request.kind else {
            return Err("a read was answered as a write".into());
        };
        let summary = summary_of(outcome);
        truth.answers(index, digest, &summary)?;
        let Some(revision) = revision_of(&summary) else {
            report.add(Count::Refusals, 1);
            return Ok(request.client);
        };
        if revision < request.floor || (is_change(&summary) && revision == request.floor) {
            return Err(
                format!("a write got revision {revision}, but {} was known before", request.floor).into()
            );
        }
        self.newest_told = self.newest_told.max(revision);
        report.add(count, 1);
        Ok(request.client)
    }

    /// A read point was reached: reads from the member's store. Returns the client.
    pub fn may_read(
        &mut self,
        id: RequestId,
        store: &Store,
        truth: &Truth,
        report: &mut Report,
    ) -> Result<u64, Breach> {
        let request = self.open.remove(&id).ok_or("a read was answered twice")?;
        let Kinds::Read(range) = &request.kind else { return Err("a write was answered as a read".into()) };
        let revision = check_range(range, store, truth)?;
        if revision < request.floor {
            return Err(
                format!("a stale read: revision {revision}, but {} was known before", request.floor).into()
            );
        }
        self.newest_told = self.newest_told.max(revision);
        report.add(if range.revision == 0 { Count::Reads } else { Count::OldReads }, 1);
        Ok(request.client)
    }

    /// A request ended without an answer. Returns the client, unless it ended before.
    pub fn gone(&mut self, id: RequestId) -> Option<u64> {
        self.open.remove(&id).map(|request| request.client)
    }

    /// Every request that was open at a member that went down.
    pub fn open_at(&self, member: u64) -> Vec<RequestId> {
        self.open.iter().filter(|(_, request)| request.member == member).map(|(id, _)| *id).collect()
    }
}

/// Field 1000 of the command: no version of the state machine knows it, so all skip it.
const NUMBER_FIELD: u64 = 1000;

/// The command with the number of its request appended: two requests never have the same bytes, and the oracle notices a
/// command that is committed twice.
fn numbered(command: Bytes, id: RequestId) -> Bytes {
    let mut bytes = command.to_vec();
    for mut number in [NUMBER_FIELD << 3, id] {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    bytes.into()
}

/// Reads a range and holds it against the oracle at the store's revision, which is returned.
pub(crate) fn check_range(range: &RangeRequest, store: &Store, truth: &Truth) -> Result<i64, Breach> {
    let (revision, compacted) = (store.revision(), store.compact_revision());
    let found = match state_machine::range(store, range, &()) {
        Ok(response) => {
            let header = response.header.as_ref().map_or(0, |header| header.revision);
            if header != revision {
                return Err(format!("a store at revision {revision} answers as of {header}").into());
            }
            Ok(digest_of(&response))
        }
        Err(Failure::Refused(api::Error::Compacted)) => Err(Refusal::Compacted),
        Err(Failure::Refused(api::Error::FutureRev)) => Err(Refusal::Future),
        Err(error) => return Err(format!("a read of {range:?} failed: {error:?}").into()),
    };
    let foretold = truth.model.range(range, revision, compacted);
    if found != foretold {
        return Err(
            format!("{range:?} gave {found:?} at revision {revision}, the oracle {foretold:?}").into()
        );
    }
    Ok(revision)
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::PutRequest;
    use command::Kind;

    use super::*;

    #[test]
    fn a_number_makes_bytes_differ_and_changes_no_command() {
        let kind = Kind::Put(PutRequest { key: Bytes::from_static(b"a"), ..PutRequest::default() });
        let [one, two] = [1, 300].map(|id| numbered(command::encode(kind.clone()), id));
        assert_ne!(one, two);
        assert_eq!(command::decode(&one).ok(), Some(kind.clone()));
        assert_eq!(command::decode(&two).ok(), Some(kind));
    }
}
