//! Applies commands to the store.
//!
//! ```text
//!   bytes ──decode──▶ command ──alarms──▶ checks on the state before ──▶ changes ──▶ outcome
//!             │                  │                 │
//!             └──────────────────┴────── rejected: no change, the outcome is the error
//! ```
//!
//! * Deterministic: the same commands in the same order give the same bytes on every member.
//!   Whether a client waits for the outcome may save work, but does not affect state.
//! * A rejection is an outcome. After a fatal error the process must stop.
//! * Bytes that are not a command are rejected. Stopping would stop every member at every start.
//! * A command that may need a revision is rejected when revisions are exhausted, and so is an auth
//!   change when auth revisions are.

use api::etcdserverpb::{
    AlarmResponse, AuthenticateResponse, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeResponse, PutRequest, PutResponse, ResponseHeader,
    TxnRequest, TxnResponse,
};
use base::{Cost, Term};
use bytes::Bytes;
use mvcc::{LogIndex, LogPosition, Pressure, REVISION_MAX, Store, Writer};

use crate::alarms::Alarms;
use crate::auth::{AuthStore, AuthTable, ChangeResult};
use crate::command::{self, AuthChange, DecodeError, DecodedCommand, Kind, LeaseExpire, LeaseRenew};
use crate::cost::cost_of;
use crate::failure::{Answer, ApplyError, Failure, Outcome, Response, header};
use crate::kv::{txn, validate, write};
use crate::lease::{self, LeaseTable, Leases};
use crate::level::{self, ClusterLevel, CommandLevel};
use crate::member_change;
use crate::members::{self, Genesis};

/// The replicated state: keys, alarms, members. Only apply writes it. Readers use a handle of the
/// store.
pub struct EtcdMachine {
    writer: Writer,
    alarms: Alarms,
    auth: AuthStore,
    leases: Leases,
    applied: LogPosition,
    undecodable: u64,
    level: ClusterLevel,
    known: CommandLevel,
    /// Commands that [`EtcdMachine::cost`] has decoded for apply, at most those of a single entry.
    decoded: Vec<(Bytes, DecodedCommand)>,
}

impl EtcdMachine {
    /// Continues from the state in the store. `genesis` is used only if the store has no members.
    pub fn new(writer: Writer, genesis: &Genesis) -> Result<Self, ApplyError> {
        EtcdMachine::of_level(writer, genesis, CommandLevel::OWN)
    }

    /// Continues from the state in the store, as a version with this command level.
    pub fn of_level(mut writer: Writer, genesis: &Genesis, known: CommandLevel) -> Result<Self, ApplyError> {
        members::initialize(&mut writer, genesis);
        let store = writer.store();
        let level = ClusterLevel::at(level::load(store, known)?);
        let (alarms, applied) = (Alarms::load(store)?, store.applied());
        let auth = AuthStore::load(store)?;
        members::list(store)?; // An unreadable member is better found now than by the first client that asks.
        let leases = Leases::load(&mut writer)?;
        let (undecodable, decoded) = (0, Vec::new());
        Ok(EtcdMachine { writer, alarms, auth, leases, applied, undecodable, level, known, decoded })
    }

    /// Continues from a store that was installed: reads its alarms, leases and position. The apply
    /// loop calls it before the next entry.
    ///
    /// Errors: an alarm, a lease or a member of the new store cannot be read.
    pub fn installed(&mut self) -> Result<(), ApplyError> {
        let store = self.writer.store();
        let level = level::load(store, self.known)?;
        let (alarms, applied) = (Alarms::load(store)?, store.applied());
        members::list(store)?;
        assert!(applied >= self.applied, "a store that is older than the present one is never installed");
        if !base::mutant("leases-kept-at-install") {
            self.leases.reload(&mut self.writer)?;
        }
        self.auth.reload(self.writer.store())?;
        (self.alarms, self.applied) = (alarms, applied);
        self.level.set(level);
        Ok(())
    }

    /// Returns the last entry that is completely applied to the store.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    pub fn store(&self) -> &Store {
        self.writer.store()
    }

    /// Returns the last recorded lease clock. Cheap: the apply loop compares it after each entry.
    pub fn lease_clock(&self) -> i64 {
        self.leases.clock()
    }

    pub fn leases(&self) -> &LeaseTable {
        self.leases.table()
    }

    /// Reports whether `member` has an active CORRUPT alarm. Cheap if there is no such alarm.
    pub fn is_corrupt(&self, member: u64) -> bool {
        self.alarms.is_corrupt(member)
    }

    pub fn level(&self) -> &ClusterLevel {
        &self.level
    }

    pub fn auth(&self) -> &AuthTable {
        self.auth.table()
    }

    /// Applies a command of the entry at `at`. The outcome is `Some` if and only if `answer` is
    /// `Wanted`.
    pub fn apply(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Outcome>, ApplyError> {
        assert!(at.index > self.applied.index, "entry {} was applied already", at.index);
        assert!(at.term >= self.applied.term, "entry {} is of an older term than the one before", at.index);
        let outcome = match self.decode_and_check(command) {
            Ok(kind) => self.execute(at, kind, answer)?,
            Err(refusal) => Err(refusal),
        };
        Ok((answer == Answer::Wanted).then_some(outcome))
    }

    /// Applies a membership change, the only command of its entry. Otherwise like
    /// [`EtcdMachine::apply`]. A command of another kind is rejected.
    pub fn apply_change(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Outcome>, ApplyError> {
        assert!(at.index > self.applied.index, "entry {} was applied already", at.index);
        let outcome = match self.decode_and_check(command) {
            Ok(Kind::MemberChange(request)) => {
                member_change::apply(&mut self.writer, request)?.map(Response::Members)
            }
            Ok(_) => Err(api::Error::NotCapable),
            Err(refusal) => Err(refusal),
        };
        Ok((answer == Answer::Wanted).then_some(outcome))
    }

    /// Returns an upper bound for the cost of applying `command`; None if unbounded, or if it
    /// cannot be decoded. A command that is applied next, in this entry, is not decoded again.
    pub fn cost(&mut self, command: &Bytes) -> Option<Cost> {
        if let Some((_, decoded)) = self.decoded.iter().find(|(known, _)| known == command) {
            return cost_of(decoded);
        }
        let decoded = command::decode_with_caller(command).ok()?;
        let cost = cost_of(&decoded)?;
        self.decoded.push((command.clone(), decoded));
        Some(cost)
    }

    /// Returns the number of undecodable commands since the start.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Returns the command, or an error if it cannot be decoded, is blocked by an alarm, or lacks
    /// permission.
    fn decode_and_check(&mut self, command: &Bytes) -> Result<Kind, api::Error> {
        let known = self.decoded.iter().position(|(known, _)| known == command);
        let (kind, caller) = match known {
            Some(at) => self.decoded.remove(at).1,
            None => command::decode_with_caller(command).map_err(|error| {
                self.undecodable += 1;
                refusal(&error)
            })?,
        };
        self.alarms.check(self.writer.store(), &kind)?;
        self.check_revision(&kind)?;
        self.auth.authorize(self.writer.store(), &kind, caller.as_ref())?;
        Ok(kind)
    }

    /// Rejects commands that may need a revision if there is none left.
    fn check_revision(&self, kind: &Kind) -> Result<(), api::Error> {
        let may_need = match kind {
            Kind::Put(_) | Kind::DeleteRange(_) | Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) => true,
            Kind::Txn(request) => !validate::is_read_only(request),
            Kind::Compact(_) | Kind::Alarm(_) | Kind::LeaseGrant(_) | Kind::LeaseRenew(_) => false,
            Kind::Auth(_) | Kind::PublishMember(_) | Kind::MemberChange(_) => false,
            Kind::SetDowngrade(_) | Kind::RaiseLevel(_) => false,
        };
        let has_none = self.revisions_left() == 0 && !base::mutant("past-the-last-revision");
        if may_need && has_none { Err(api::Error::NoSpace) } else { Ok(()) }
    }

    fn revisions_left(&self) -> u64 {
        REVISION_MAX.saturating_sub(self.writer.store().revision()).try_into().unwrap_or(0)
    }

    /// Finishes the entry at `at`, with or without commands. Returns the urgency of the next
    /// checkpoint.
    pub fn end_entry(&mut self, at: LogPosition) -> Result<Pressure, ApplyError> {
        assert!(at.index > self.applied.index, "entry {} was ended already", at.index);
        let pressure =
            self.writer.end_entry(at).map_err(|source| ApplyError::Store { index: at.index, source })?;
        self.applied = at;
        self.decoded.clear();
        Ok(pressure)
    }

    fn execute(&mut self, at: LogPosition, kind: Kind, answer: Answer) -> Result<Outcome, ApplyError> {
        let response = match kind {
            Kind::Put(request) => self.put(request, answer).map(Response::Put),
            Kind::DeleteRange(request) => self.delete_range(request, answer).map(Response::DeleteRange),
            Kind::Txn(request) => self.txn(request, answer).map(Response::Txn),
            Kind::Compact(_) if base::mutant("local-compaction") && answer == Answer::Unwanted => {
                Ok(Response::Compact(CompactionResponse { header: self.header() }))
            }
            Kind::Compact(request) => self.compact(request.revision).map(Response::Compact),
            Kind::Alarm(request) => {
                let alarms = self.alarms.apply(&mut self.writer, &request);
                Ok(Response::Alarm(AlarmResponse { header: self.header(), alarms }))
            }
            Kind::PublishMember(request) => match members::publish(&mut self.writer, request)? {
                Ok(()) => Ok(Response::PublishMember),
                Err(refusal) => Err(refusal.into()),
            },
            // Only valid in an entry for membership changes, which guarantees that the previous
            // change is applied.
            Kind::MemberChange(_) => Err(api::Error::NotCapable.into()),
            Kind::LeaseGrant(request) => self.lease_grant(at.index, &request).map(Response::LeaseGrant),
            Kind::LeaseRevoke(request) => self.lease_revoke(request.id).map(Response::LeaseRevoke),
            Kind::LeaseExpire(request) => self.lease_expire(at.term, &request).map(Response::LeaseExpire),
            Kind::LeaseRenew(request) => self.lease_renew(at.term, &request).map(|()| Response::LeaseRenew),
            Kind::SetDowngrade(request) => {
                let set = level::set_downgrade(&mut self.writer, &request);
                set.map(|()| Response::SetDowngrade).map_err(Failure::from)
            }
            Kind::RaiseLevel(request) => {
                let raised = level::apply(&mut self.writer, self.level.get(), self.known, &request)?;
                raised
                    .map(|level| self.level.set(level))
                    .map(|()| Response::RaiseLevel)
                    .map_err(Failure::from)
            }
            Kind::Auth(request) => self.change_auth(at.index, request),
        };
        match response {
            Ok(response) => Ok(Ok(response)),
            Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
            Err(Failure::Broken(source)) => Err(ApplyError::Store { index: at.index, source }),
            Err(Failure::Interrupted | Failure::Released) => {
                unreachable!("apply reads without a meter, and no large range")
            }
        }
    }

    fn put(&mut self, request: PutRequest, answer: Answer) -> Result<PutResponse, Failure> {
        let mut writer = self.writer.begin();
        write::check_put(&writer, &self.leases, &request)?;
        let response = write::put(&mut writer, request, answer)?;
        writer.finish();
        Ok(response)
    }

    fn delete_range(
        &mut self,
        request: DeleteRangeRequest,
        answer: Answer,
    ) -> Result<DeleteRangeResponse, Failure> {
        validate::delete_range(&request)?;
        let mut writer = self.writer.begin();
        let response = write::delete_range(&mut writer, request, answer)?;
        writer.finish();
        Ok(response)
    }

    fn txn(&mut self, request: TxnRequest, answer: Answer) -> Result<TxnResponse, Failure> {
        let compact_revision = self.writer.store().compact_revision();
        let mut writer = self.writer.begin();
        let before = txn::Before { leases: &self.leases, compact_revision };
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

    fn lease_grant(
        &mut self,
        index: LogIndex,
        request: &LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, Failure> {
        let ttl = self.leases.grant(&mut self.writer, index, request.id, request.ttl)?;
        Ok(LeaseGrantResponse { header: self.header(), id: request.id, ttl, error: String::new() })
    }

    fn lease_revoke(&mut self, id: i64) -> Result<LeaseRevokeResponse, Failure> {
        self.leases.find(id)?;
        lease::delete_keys(&mut self.writer, id)?;
        self.leases.remove(&mut self.writer, &[id]);
        Ok(LeaseRevokeResponse { header: self.header() })
    }

    /// Revokes the leases that have expired, each at a separate revision, and returns their number.
    fn lease_expire(&mut self, term: Term, request: &LeaseExpire) -> Result<usize, Failure> {
        let mut ids = self.leases.expired(term, request)?;
        ids.truncate(usize::try_from(self.revisions_left()).unwrap_or(usize::MAX));
        for id in &ids {
            lease::delete_keys(&mut self.writer, *id)?;
        }
        self.leases.remove(&mut self.writer, &ids);
        Ok(ids.len())
    }

    fn lease_renew(&mut self, term: Term, request: &LeaseRenew) -> Result<(), Failure> {
        Ok(self.leases.renew(&mut self.writer, term, request)?)
    }

    fn change_auth(&mut self, index: LogIndex, request: AuthChange) -> Result<Response, Failure> {
        Ok(match self.auth.change(&mut self.writer, index, request)? {
            ChangeResult::Done => Response::Auth(self.header()),
            ChangeResult::Token(token) => {
                Response::Authenticate(AuthenticateResponse { header: self.header(), token })
            }
        })
    }

    fn header(&self) -> Option<ResponseHeader> {
        header(self.writer.store().revision())
    }
}

/// Returns the error for an undecodable command. This version proposes none, but a member of
/// another version may, and so may a foreign sender at the peer port.
fn refusal(error: &DecodeError) -> api::Error {
    match error {
        DecodeError::TooDeep | DecodeError::TooMany => api::Error::TooManyOps,
        DecodeError::Malformed(_) | DecodeError::Field | DecodeError::UnknownKind => api::Error::NotCapable,
    }
}
