//! The machine: one command in, the store changed, one outcome out.
//!
//!   bytes ──decode──▶ command ──alarms──▶ checks on the state before ──▶ changes ──▶ outcome
//!                                │                 │
//!                                └────── refused: nothing changed, the outcome says why
//!
//! * Deterministic: the same commands in the same order leave every member with the same bytes. Whether somebody
//!   waits for the outcome may save work, but decides nothing.
//! * A refusal is an outcome like any other; a fatal error is none, and the process must stop.
//! * Headers carry the revision only. Ids and the Raft term are the answering member's, which fills them in.

use api::etcdserverpb::{
    AlarmResponse, CompactionResponse, DeleteRangeResponse, PutResponse, ResponseHeader, TxnResponse,
};
use bytes::Bytes;
use mvcc::{Applied, Pressure, Store, Writer};

use crate::alarms::Alarms;
use crate::command::{self, Kind};
use crate::failure::{Failure, Fatal};
use crate::leases::Leases;
use crate::members::{self, Genesis};
use crate::txn::Before;
use crate::{txn, write};

/// Whether somebody on this member waits for the outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Wanted,
    /// What only a response needs is not read: ranges of transactions, previous values.
    Unwanted,
}

/// What a command answers when it was not refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    Alarm(AlarmResponse),
    PublishMember,
}

/// The result of a command, equal on every member.
pub type Outcome = Result<Response, api::Error>;

/// The replicated state: keys, alarms, members. Only apply writes it; readers use the store's own handle.
pub struct StateMachine {
    writer: Writer,
    alarms: Alarms,
    leases: Leases,
    /// The last entry that was ended.
    applied: Applied,
}

impl StateMachine {
    /// Goes on from what the store holds. `genesis` counts only while the store has no members.
    pub fn new(mut writer: Writer, genesis: &Genesis) -> Result<Self, Fatal> {
        members::found(&mut writer, genesis);
        let store = writer.store();
        let (alarms, applied) = (Alarms::load(store)?, store.applied());
        members::list(store)?; // An unreadable member is better found now than by the first client that asks.
        Ok(StateMachine { writer, alarms, leases: Leases::default(), applied })
    }

    /// Goes on from a store that was installed in the place of the present one: what is remembered of the old one is
    /// read anew. To be called by whoever applies, before the next entry.
    ///
    /// Errors: an alarm or a member of the new store cannot be read.
    pub fn installed(&mut self) -> Result<(), Fatal> {
        let store = self.writer.store();
        let (alarms, applied) = (Alarms::load(store)?, store.applied());
        members::list(store)?;
        assert!(applied >= self.applied, "a store that is behind the present one is never installed");
        (self.alarms, self.leases, self.applied) = (alarms, Leases::default(), applied);
        Ok(())
    }

    /// The last entry whose effects are in the store.
    pub fn applied(&self) -> Applied {
        self.applied
    }

    /// The reader's handle of the store that commands change.
    pub fn store(&self) -> &Store {
        self.writer.store()
    }

    /// Applies one command of the entry at `at`. The outcome is `Some` if and only if the answer is wanted.
    pub fn apply(&mut self, at: Applied, command: &Bytes, answer: Answer) -> Result<Option<Outcome>, Fatal> {
        assert!(at.index > self.applied.index, "entry {} was applied already", at.index);
        assert!(at.term >= self.applied.term, "entry {} is of an older term than the one before", at.index);
        let kind = command::decode(command).map_err(|source| Fatal::Decode { index: at.index, source })?;
        let outcome = match self.alarms.gate(&kind) {
            Ok(()) => self.execute(at.index, kind, answer)?,
            Err(refusal) => Err(refusal),
        };
        Ok((answer == Answer::Wanted).then_some(outcome))
    }

    /// Ends the entry at `at`, whether or not it held commands. Tells how urgently a checkpoint is wanted.
    pub fn end_entry(&mut self, at: Applied) -> Result<Pressure, Fatal> {
        assert!(at.index > self.applied.index, "entry {} was ended already", at.index);
        let pressure =
            self.writer.end_entry(at).map_err(|source| Fatal::Store { index: at.index, source })?;
        self.applied = at;
        Ok(pressure)
    }

    fn execute(&mut self, index: u64, kind: Kind, answer: Answer) -> Result<Outcome, Fatal> {
        let response = match kind {
            Kind::Put(request) => self.put(request, answer).map(Response::Put),
            Kind::DeleteRange(request) => self.delete_range(request, answer).map(Response::DeleteRange),
            Kind::Txn(request) => self.txn(request, answer).map(Response::Txn),
            Kind::Compact(_) if cfg!(feature = "mutant-local-compaction") && answer == Answer::Unwanted => {
                Ok(Response::Compact(CompactionResponse { header: self.header() }))
            }
            Kind::Compact(request) => self.compact(request.revision).map(Response::Compact),
            Kind::Alarm(request) => {
                let alarms = self.alarms.apply(&mut self.writer, &request);
                Ok(Response::Alarm(AlarmResponse { header: self.header(), alarms }))
            }
            Kind::PublishMember(request) => {
                members::publish(&mut self.writer, request)?;
                Ok(Response::PublishMember)
            }
        };
        match response {
            Ok(response) => Ok(Ok(response)),
            Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
            Err(Failure::Broken(source)) => Err(Fatal::Store { index, source }),
        }
    }

    fn put(
        &mut self,
        request: api::etcdserverpb::PutRequest,
        answer: Answer,
    ) -> Result<PutResponse, Failure> {
        let mut writer = self.writer.begin();
        write::check_put(&writer, &self.leases, &request)?;
        let response = write::put(&mut writer, request, answer)?;
        writer.finish();
        Ok(response)
    }

    fn delete_range(
        &mut self,
        request: api::etcdserverpb::DeleteRangeRequest,
        answer: Answer,
    ) -> Result<DeleteRangeResponse, Failure> {
        crate::validate::delete_range(&request)?;
        let mut writer = self.writer.begin();
        let response = write::delete_range(&mut writer, request, answer)?;
        writer.finish();
        Ok(response)
    }

    fn txn(
        &mut self,
        request: api::etcdserverpb::TxnRequest,
        answer: Answer,
    ) -> Result<TxnResponse, Failure> {
        let compact_revision = self.writer.store().compact_revision();
        let mut writer = self.writer.begin();
        let before = Before { leases: &self.leases, compact_revision };
        let response = txn::apply(&mut writer, before, request, answer)?;
        writer.finish();
        Ok(response)
    }

    fn compact(&mut self, revision: i64) -> Result<CompactionResponse, Failure> {
        let revision_before = self.writer.store().revision();
        self.writer.compact(revision)?;
        assert_eq!(self.writer.store().revision(), revision_before, "a compaction is no revision");
        Ok(CompactionResponse { header: self.header() })
    }

    fn header(&self) -> Option<ResponseHeader> {
        crate::header(self.writer.store().revision())
    }
}
