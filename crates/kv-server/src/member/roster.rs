//! The cluster's membership as applied on this member, for the parts that communicate with peers.
//!
//! * The member list is a copy of the state machine's. The apply thread replaces it as a whole.
//! * A removed member is distinguished from a member that was never added: only the former receives the
//!   response that stops it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use api::etcdserverpb::Member as MemberEntry;
use bytes::Bytes;
use mvcc::{KvHash, LogIndex, RecountAnswer, RecountSpan, SpanDigest};
use parking_lot::RwLock;
use raft_node::{Membership, Progress};
use state_machine::CommandLevel;
use tokio::sync::watch;

use data_dir::FirstMember;

/// Membership status of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Member,
    Removed,
    Unknown,
}

/// Converts the state machine's member entries.
pub fn entries(members: Vec<MemberEntry>) -> Vec<FirstMember> {
    let entry = |member: MemberEntry| FirstMember {
        id: member.id,
        name: member.name,
        peer_urls: member.peer_ur_ls,
        is_learner: member.is_learner,
    };
    members.into_iter().map(entry).collect()
}

/// Command levels that another member announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedMembers {
    /// Highest level that its version supports.
    pub known: CommandLevel,
    /// The cluster's level as that member has applied it.
    pub cluster: CommandLevel,
}

/// Future of a command-level query; none if the member did not respond.
pub type AskedLevels<'a> = Pin<Box<dyn Future<Output = Option<AnnouncedMembers>> + Send + 'a>>;

/// Future of a progress query to the leader.
pub type ProgressAnswer<'a> = Pin<Box<dyn Future<Output = Option<Progress>> + Send + 'a>>;

/// Future of a hash query. The error is a reason.
pub type AskedHash<'a> = Pin<Box<dyn Future<Output = Result<KvHash, String>> + Send + 'a>>;

/// Future of a digest query. The error is a reason.
pub type AskedDigest<'a> = Pin<Box<dyn Future<Output = Result<SpanDigest, String>> + Send + 'a>>;

/// Future of a recount query. The error is a reason.
pub type AskedRecount<'a> = Pin<Box<dyn Future<Output = Result<RecountAnswer, String>> + Send + 'a>>;

/// Future of a member's status page data, as JSON.
pub type AskedFigures<'a> = Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'a>>;

/// Source of this member's status page data, for requests of other members.
pub type FiguresSource = Box<dyn Fn(Figures) -> AskedFigures<'static> + Send + Sync>;

/// Kind of status page data requested from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    Now,
    /// Measurements of the last hours.
    History,
}

/// Connections to the other members: their state, and the queries sent over them.
pub trait Reach: Send + Sync {
    /// Start of the current period without a communication failure; none while the member is unreachable.
    fn active_since(&self, member: u64) -> Option<Instant>;
    /// Last announcement of the member; none while it is unreachable.
    fn announced(&self, member: u64) -> Option<AnnouncedMembers>;
    /// Queries the member's current levels: it may have restarted with another version since its
    /// announcement.
    fn ask_levels(&self, member: u64) -> AskedLevels<'_>;
    /// Queries the leader for the progress of a member's log and state. None if `leader` is unreachable or
    /// does not lead.
    fn ask_progress(&self, leader: u64, member: u64) -> ProgressAnswer<'_>;
    /// Queries a member for its digest of the changes by the entries above `after` and up to `to`.
    fn ask_digest(&self, member: u64, after: LogIndex, to: LogIndex) -> AskedDigest<'_>;
    /// Queries a member for its digest of a part of the state.
    fn ask_recount(&self, member: u64, span: RecountSpan) -> AskedRecount<'_>;
    /// Queries a member for its hash of the history up to a revision.
    fn ask_hash(&self, member: u64, at: i64) -> AskedHash<'_>;
    /// Requests a member's status page data.
    fn ask_figures(&self, member: u64, figures: Figures) -> AskedFigures<'_>;
    /// Sets the source from which status page requests of other members are served.
    fn serve_figures(&self, source: FiguresSource);
}

pub type WasRemoved = Box<dyn Fn(u64) -> bool + Send + Sync>;

pub struct Roster {
    own: u64,
    members: RwLock<Arc<Vec<FirstMember>>>,
    was_removed: WasRemoved,
    is_learner: AtomicBool,
    lacks_others: AtomicBool,
    removal: watch::Sender<bool>,
    changes: watch::Sender<()>,
}

impl Roster {
    pub fn new(own: u64, members: Vec<FirstMember>, was_removed: WasRemoved) -> Roster {
        let roster = Roster {
            own,
            members: RwLock::default(),
            was_removed,
            is_learner: AtomicBool::new(false),
            lacks_others: AtomicBool::new(false),
            removal: watch::channel(false).0,
            changes: watch::channel(()).0,
        };
        roster.replace(members);
        roster
    }

    /// Marks the list as incomplete: the current one was lost with the store, and the log lists further
    /// members.
    pub fn lacking_others(self) -> Roster {
        self.lacks_others.store(true, Ordering::Relaxed);
        self
    }

    /// Reports whether the list may lack other members. False once the list is replaced.
    pub fn lacks_others(&self) -> bool {
        self.lacks_others.load(Ordering::Relaxed)
    }

    pub fn replace(&self, members: Vec<FirstMember>) {
        self.lacks_others.store(false, Ordering::Relaxed);
        let is_learner = members.iter().any(|member| member.id == self.own && member.is_learner);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        *self.members.write() = Arc::new(members);
        self.changes.send_replace(());
    }

    /// Returns once `id`, which was a member, is removed.
    pub async fn left(&self, id: u64) {
        let mut changes = self.changes.subscribe();
        while self.standing(id) != Standing::Removed {
            let _never_closed = changes.changed().await;
        }
    }

    pub fn members(&self) -> Arc<Vec<FirstMember>> {
        Arc::clone(&self.members.read())
    }

    /// Returns the peer URLs of this member in its list.
    pub fn own_urls(&self) -> Vec<String> {
        let members = self.members();
        let own = members.iter().find(|member| member.id == self.own);
        own.map(|member| member.peer_urls.clone()).unwrap_or_default()
    }

    /// Returns the ids of voters and learners.
    pub fn membership(&self) -> Membership {
        let members = self.members();
        let ids = |is_learner| {
            let of_kind = members.iter().filter(move |member| member.is_learner == is_learner);
            of_kind.map(|member| member.id).collect()
        };
        Membership { voters: ids(false), learners: ids(true) }
    }

    pub fn others(&self) -> Vec<FirstMember> {
        self.members().iter().filter(|member| member.id != self.own).cloned().collect()
    }

    pub fn standing(&self, id: u64) -> Standing {
        if self.members.read().iter().any(|member| member.id == id) {
            Standing::Member
        } else if (self.was_removed)(id) {
            Standing::Removed
        } else {
            Standing::Unknown
        }
    }

    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// Records that this member was removed, as reported by a voter that has applied the removal. Cannot be
    /// undone.
    ///
    /// The member's own list is not sufficient: in a cluster of two, the remaining member may need this
    /// member's vote until it has committed the removal.
    pub fn note_removed(&self) {
        self.removal.send_replace(true);
    }

    pub fn is_removed(&self) -> bool {
        *self.removal.borrow()
    }

    pub async fn removed(&self) {
        let mut removal = self.removal.subscribe();
        let _never_closed = removal.wait_for(|is_removed| *is_removed).await;
    }
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Roster").field("members", &self.members()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_roster_tells_members_from_those_removed_and_those_never_added() {
        let member =
            |id, is_learner| FirstMember { id, name: String::new(), peer_urls: Vec::new(), is_learner };
        let roster = Roster::new(1, vec![member(1, false), member(2, true)], Box::new(|id| id == 3));
        assert_eq!(
            [2, 3, 4].map(|id| roster.standing(id)),
            [Standing::Member, Standing::Removed, Standing::Unknown]
        );
        assert_eq!((roster.is_learner(), roster.others().len()), (false, 1));
        roster.replace(vec![member(1, true)]);
        assert_eq!((roster.is_learner(), roster.standing(2)), (true, Standing::Unknown));
        let removed = Roster::new(3, vec![member(1, false), member(2, true)], Box::new(|id| id == 3));
        assert!(!removed.is_removed(), "its own list is no reason to end");
        removed.note_removed();
        removed.removed().await;
    }
}
