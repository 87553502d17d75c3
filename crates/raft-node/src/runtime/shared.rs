//! State shared by a member's threads and handles: the inbox, gauges, and the failure flag.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | inbox | handles, log thread, apply thread | driver |
//! | role, leader, term, commit, last index | driver, after each poll | handles |
//! | applied | the applying thread, after each entry | driver, handles |
//! | admission: pending requests | handles acquire permits, results release them | handles |
//! | failed | the first failing thread | all, before any acknowledgement |
//!
//! * Each gauge is written by a single thread and read by all without a lock.
//! * The first fatal error is reported once; after it no requests are acknowledged and every thread exits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::queue::{Entrance, InputQueue, ProposeReply, ReadReply};
use crate::core::Event;
use crate::core::{PeerState, Start};
use crate::node::Gauges;
use crate::types::Travel;
use crate::{
    Fatal, Host, LogIndex, Membership, NodeId, Observer, Progress, RaftLimits, Role, Term, TransferError,
};

/// A reading of the member's gauges; each is correct, but they may be from slightly different times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    pub id: NodeId,
    pub role: Role,
    /// None while no leader is known.
    pub leader: Option<NodeId>,
    pub term: Term,
    pub commit: LogIndex,
    pub applied: LogIndex,
    pub last_index: LogIndex,
    /// The log was empty at the start, and the member does not take part until [`crate::Inbox::confirm`].
    pub is_unconfirmed: bool,
    pub start: Start,
    /// Pending proposals of this member.
    pub proposals_pending: usize,
}

pub(super) enum Input<O> {
    Event(Event),
    Propose {
        command: bytes::Bytes,
        travel: Travel,
        reply: ProposeReply<O>,
    },
    Read {
        reply: ReadReply,
    },
    /// Query of a member with an empty log.
    AnswerMember {
        asker: NodeId,
        reply: oneshot::Sender<PeerState>,
    },
    /// Query for a member's progress known to the leader.
    Progress {
        of: NodeId,
        reply: oneshot::Sender<Option<Progress>>,
    },
    /// Transfer leadership: to a certain voter, or to the best one.
    HandOver {
        to: Option<NodeId>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
}

/// One per member, shared by every thread and every handle.
pub(super) struct RuntimeShared<O> {
    pub id: NodeId,
    pub inbox: InputQueue<Input<O>>,
    pub entrance: Entrance,
    pub host: Arc<dyn Host>,
    pub observer: Arc<dyn Observer>,
    /// Written by the applying thread.
    pub applied: AtomicU64,
    /// Memberships not yet handled by the driver, by the index of their entry. Written before `applied`
    /// reaches that index. Limited to the changes within `apply_bytes_max`.
    pub memberships: Mutex<VecDeque<(LogIndex, Membership)>>,
    /// The driver has entries that wait for capacity in the apply thread.
    pub wants_applied: AtomicBool,
    /// The driver has work for the next sync; otherwise it handles the sync with its next input.
    pub waits_for_sync: AtomicBool,
    /// Reports a fatal error to the process; called once.
    on_fatal: Box<dyn Fn(Fatal) + Send + Sync>,
    /// Set before any pending call completes, so that no result overtakes the failure.
    failed: AtomicBool,
    // Gauges, as last published by the driver.
    role: AtomicU8,
    leader: AtomicU64,
    term: AtomicU64,
    commit: AtomicU64,
    last_index: AtomicU64,
    is_unconfirmed: AtomicBool,
    is_founder: AtomicBool,
    has_term: AtomicBool,
    /// The current leader, for subscribers. Written after the gauges.
    pub leader_known: watch::Sender<Option<NodeId>>,
}

impl<O> RuntimeShared<O> {
    pub fn new(
        id: NodeId,
        limits: &RaftLimits,
        host: Arc<dyn Host>,
        observer: Arc<dyn Observer>,
        on_fatal: Box<dyn Fn(Fatal) + Send + Sync>,
    ) -> Self {
        RuntimeShared {
            id,
            inbox: InputQueue::new(),
            entrance: Entrance::new(limits),
            host,
            observer,
            applied: AtomicU64::new(0),
            memberships: Mutex::default(),
            wants_applied: AtomicBool::new(false),
            waits_for_sync: AtomicBool::new(true),
            on_fatal,
            failed: AtomicBool::new(false),
            role: AtomicU8::new(role_code(Role::Follower)),
            leader: AtomicU64::new(0),
            term: AtomicU64::new(0),
            commit: AtomicU64::new(0),
            last_index: AtomicU64::new(0),
            is_unconfirmed: AtomicBool::new(false),
            is_founder: AtomicBool::new(false),
            has_term: AtomicBool::new(false),
            leader_known: watch::Sender::new(None),
        }
    }

    /// Fails the member: reports the first cause and stops all threads.
    pub fn fail(&self, fatal: Fatal) {
        if !self.failed.swap(true, Ordering::SeqCst) {
            // The process logs the error.
            tracing::debug!(error = %fatal, "the member is stopping");
            (self.on_fatal)(fatal);
        }
        self.inbox.close();
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Called by the driver after each poll. The stores are not atomic together: a reader may see the new
    /// term with the old leader, and must not conclude anything from the pair.
    pub fn publish(&self, gauges: Gauges) {
        debug_assert!(gauges.commit <= gauges.last_index, "committed beyond the log's end");
        debug_assert!(
            gauges.role != Role::Leader || gauges.leader == Some(self.id),
            "a leader follows itself"
        );
        self.role.store(role_code(gauges.role), Ordering::Relaxed);
        self.leader.store(gauges.leader.unwrap_or(0), Ordering::Relaxed);
        self.term.store(gauges.term.0, Ordering::Relaxed);
        self.commit.store(gauges.commit.0, Ordering::Relaxed);
        self.last_index.store(gauges.last_index.0, Ordering::Relaxed);
    }

    /// Called like [`RuntimeShared::publish`].
    pub fn publish_start(&self, is_unconfirmed: bool, start: Start) {
        self.is_founder.store(start.is_founder, Ordering::Relaxed);
        self.has_term.store(start.has_term, Ordering::Relaxed);
        self.is_unconfirmed.store(is_unconfirmed, Ordering::Relaxed);
    }

    /// Returns the machine's applied index.
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::SeqCst))
    }

    pub fn status(&self) -> Status {
        let read = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        Status {
            id: self.id,
            role: role_of(self.role.load(Ordering::Relaxed)),
            leader: Some(read(&self.leader)).filter(|id| *id != 0),
            term: Term(read(&self.term)),
            commit: LogIndex(read(&self.commit)),
            applied: LogIndex(read(&self.applied)),
            last_index: LogIndex(read(&self.last_index)),
            is_unconfirmed: self.is_unconfirmed.load(Ordering::Relaxed),
            start: Start {
                is_founder: self.is_founder.load(Ordering::Relaxed),
                has_term: self.has_term.load(Ordering::Relaxed),
            },
            proposals_pending: self.entrance.proposals_pending(),
        }
    }
}

fn role_code(role: Role) -> u8 {
    match role {
        Role::Follower => 0,
        Role::Candidate => 1,
        Role::Leader => 2,
    }
}

fn role_of(code: u8) -> Role {
    match code {
        0 => Role::Follower,
        1 => Role::Candidate,
        _ => Role::Leader,
    }
}
