//! Clients: each asks for one thing at a time, of any member, and holds the answer against what it knows.
//!
//! * What a client is told is never older than what any client was told before it asked: that, and the truth about
//!   every revision, is linearizability, because every answer carries its revision.
//! * A request without an answer says nothing; its write may appear later.

use std::collections::BTreeMap;

use api::etcdserverpb::{PutRequest, RangeRequest};
use bytes::Bytes;
use mvcc::Store;
use state_machine::command::{self, Kind};
use state_machine::{Outcome, Response};

use crate::chance::Chance;
use crate::laws::{Breach, Truth};

/// Few keys, so that clients meet.
const KEYS: u64 = 8;

/// Names one request for ever.
pub(crate) type RequestId = u64;

enum Kinds {
    Put { key: Bytes, value: Bytes },
    Get { key: Bytes },
}

struct Request {
    client: u64,
    member: u64,
    asked: u64,
    kind: Kinds,
    /// The newest revision that anybody had been told of when this was asked.
    floor: i64,
}

/// What a member is asked for.
pub(crate) enum Ask {
    Propose(Bytes),
    Read,
}

#[derive(Default)]
pub(crate) struct Clients {
    next: RequestId,
    open: BTreeMap<RequestId, Request>,
    newest_told: i64,
    pub puts: u64,
    pub gets: u64,
    pub failed: u64,
}

impl Clients {
    /// A new request of `client` to `member`.
    pub fn ask(&mut self, client: u64, member: u64, asked: u64, chance: &mut Chance) -> (RequestId, Ask) {
        self.next += 1;
        let id = self.next;
        let key = Bytes::from(format!("key{}", chance.within(0, KEYS)));
        let (kind, ask) = if chance.per_mille(600) {
            // Sizes differ, so that groups, segments and batches do as well.
            let size = *chance.pick(&[8, 100, 3_000]);
            let value = Bytes::from(format!("{id:0size$}"));
            let put = PutRequest { key: key.clone(), value: value.clone(), ..PutRequest::default() };
            (Kinds::Put { key, value }, Ask::Propose(command::encode(Kind::Put(put))))
        } else {
            (Kinds::Get { key }, Ask::Read)
        };
        self.open.insert(id, Request { client, member, asked, kind, floor: self.newest_told });
        (id, ask)
    }

    /// When an open request was asked.
    pub fn asked_at(&self, id: RequestId) -> Option<u64> {
        self.open.get(&id).map(|request| request.asked)
    }

    /// A put was answered. Returns the client and the revision written.
    pub fn put_answered(
        &mut self,
        id: RequestId,
        outcome: Outcome,
        truth: &Truth,
    ) -> Result<(u64, i64), Breach> {
        let request = self.open.remove(&id).ok_or("a put was answered twice")?;
        let Kinds::Put { key, value } = request.kind else {
            return Err("a get was answered as a put".into());
        };
        let revision = match outcome {
            Ok(Response::Put(put)) => put.header.map_or(0, |header| header.revision),
            other => return Err(format!("a put of {key:?} was answered {other:?}").into()),
        };
        if revision <= request.floor {
            return Err(
                format!("a put got revision {revision}, but {} was known before", request.floor).into()
            );
        }
        if truth.write(revision) != Some(&(key.clone(), value)) {
            return Err(
                format!("a put of {key:?} was told revision {revision}, which wrote something else").into()
            );
        }
        self.newest_told = self.newest_told.max(revision);
        self.puts += 1;
        Ok((request.client, revision))
    }

    /// A read point was reached: reads from the member's store. Returns the client.
    pub fn may_read(&mut self, id: RequestId, store: &Store, truth: &Truth) -> Result<u64, Breach> {
        let request = self.open.remove(&id).ok_or("a get was answered twice")?;
        let Kinds::Get { key } = request.kind else { return Err("a put was answered as a get".into()) };
        let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let response =
            state_machine::range(store, &range).map_err(|error| format!("a get failed: {error:?}"))?;
        let revision = response.header.map_or(0, |header| header.revision);
        if revision < request.floor {
            return Err(
                format!("a stale read: revision {revision}, but {} was known before", request.floor).into()
            );
        }
        let found = response.kvs.first().map(|kv| kv.mod_revision);
        let newest = truth.newest(&key, revision);
        if found != newest {
            return Err(format!("{key:?} at revision {revision} is of {found:?}, not of {newest:?}").into());
        }
        self.newest_told = self.newest_told.max(revision);
        self.gets += 1;
        Ok(request.client)
    }

    /// A request ended without an answer. Returns the client, unless it ended before.
    pub fn gone(&mut self, id: RequestId) -> Option<u64> {
        let request = self.open.remove(&id)?;
        self.failed += 1;
        Some(request.client)
    }

    /// Every request that was open at a member that went down.
    pub fn open_at(&self, member: u64) -> Vec<RequestId> {
        self.open.iter().filter(|(_, request)| request.member == member).map(|(id, _)| *id).collect()
    }
}
