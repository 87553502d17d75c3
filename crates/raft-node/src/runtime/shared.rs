//! What a member's threads and handles share: the inbox, gauges, and the end.
//!
//! | what | written by | read by |
//! |---|---|---|
//! | inbox | handles, log thread, apply thread | driver |
//! | role, leader, term, commit, last index | driver, after each turn | handles |
//! | applied | the thread that applies, after each entry | driver, handles |
//! | entrance: who waits | handles take permits, answers give them back | handles |
//! | failed | the first thread in trouble | all, before anything is acknowledged |
//!
//! * Gauges are written by one thread each and read by all without a lock.
//! * The first fatal error is reported once; from then on nothing is acknowledged and every thread ends.

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

/// A reading of the member's gauges; each is right, but they may be of slightly different moments.
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
    /// The log was empty at the start, and the member takes no part until [`crate::Inbox::confirm`].
    pub is_unconfirmed: bool,
    pub start: Start,
    /// Proposals of this member that have no answer yet.
    pub proposals_pending: usize,
}

/// What reaches the driver.
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
    /// A member with an empty log asks.
    AnswerMember {
        asker: NodeId,
        reply: oneshot::Sender<PeerState>,
    },
    /// How far a member's log is, as the leader knows it.
    Progress {
        of: NodeId,
        reply: oneshot::Sender<Option<Progress>>,
    },
    /// Leadership should move: to a certain voter, or to the best one.
    HandOver {
        to: Option<NodeId>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
}

/// One per member; every thread and every handle holds it.
pub(super) struct RuntimeShared<O> {
    pub id: NodeId,
    pub inbox: InputQueue<Input<O>>,
    pub entrance: Entrance,
    pub host: Arc<dyn Host>,
    pub observer: Arc<dyn Observer>,
    /// Written by the thread that applies.
    pub applied: AtomicU64,
    /// Memberships that the driver has not heard of, by the index of the entry that brought them. Written
    /// before `applied` reaches that index. As many as there are changes within `apply_bytes_max`.
    pub memberships: Mutex<VecDeque<(LogIndex, Membership)>>,
    /// The driver has entries that wait for room in the apply thread.
    pub wants_applied: AtomicBool,
    /// The driver has work for the next sync; if not, it hears of it with its next input.
    pub waits_for_sync: AtomicBool,
    /// The process's last word on this member; called once.
    on_fatal: Box<dyn Fn(Fatal) + Send + Sync>,
    /// Set before any waiting caller is answered, so that no answer overtakes the failure.
    failed: AtomicBool,
    // Gauges: what the driver saw last.
    role: AtomicU8,
    leader: AtomicU64,
    term: AtomicU64,
    commit: AtomicU64,
    last_index: AtomicU64,
    is_unconfirmed: AtomicBool,
    is_founder: AtomicBool,
    has_term: AtomicBool,
    /// The leader, for those who wait for another one. Written after the gauges.
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

    /// The member cannot go on. Reports the first cause and stops all threads.
    pub fn fail(&self, fatal: Fatal) {
        if !self.failed.swap(true, Ordering::SeqCst) {
            // The process says it where the error ends.
            tracing::debug!(error = %fatal, "the member stops");
            (self.on_fatal)(fatal);
        }
        self.inbox.close();
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Called by the driver after each turn. The stores are not one atomic step: a reader may see the new
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

    /// Called as [`RuntimeShared::publish`] is.
    pub fn publish_start(&self, is_unconfirmed: bool, start: Start) {
        self.is_founder.store(start.is_founder, Ordering::Relaxed);
        self.has_term.store(start.has_term, Ordering::Relaxed);
        self.is_unconfirmed.store(is_unconfirmed, Ordering::Relaxed);
    }

    /// How far the machine is.
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
