//! The members of the cluster as applied here, for those who talk to them.
//!
//! * A copy of the machine's list, replaced whole by the thread that applies.
//! * A removed member is distinguished from one that was never added: the former is ordered to stop.
//! * That this member was removed is noted once, and never taken back.

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

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Member,
    Removed,
    Unknown,
}

/// The members of a list as they are talked to.
pub fn entries(members: Vec<MemberEntry>) -> Vec<FirstMember> {
    let entry = |member: MemberEntry| FirstMember {
        id: member.id,
        name: member.name,
        peer_urls: member.peer_ur_ls,
        is_learner: member.is_learner,
    };
    members.into_iter().map(entry).collect()
}

/// Levels of commands, as another member announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedMembers {
    /// What its version understands.
    pub known: CommandLevel,
    /// The cluster's, as it has applied it.
    pub cluster: CommandLevel,
}

/// The future of a question for levels.
pub type AskedLevels<'a> = Pin<Box<dyn Future<Output = Option<AnnouncedMembers>> + Send + 'a>>;

/// The future of a question to the leader.
pub type ProgressAnswer<'a> = Pin<Box<dyn Future<Output = Option<Progress>> + Send + 'a>>;

/// The future of a question for a hash. The error says why there is none.
pub type AskedHash<'a> = Pin<Box<dyn Future<Output = Result<KvHash, String>> + Send + 'a>>;

/// The future of a question for a digest. The error says why there is none.
pub type AskedDigest<'a> = Pin<Box<dyn Future<Output = Result<SpanDigest, String>> + Send + 'a>>;

/// The future of a question for a part of the state. The error says why there is no answer.
pub type AskedRecount<'a> = Pin<Box<dyn Future<Output = Result<RecountAnswer, String>> + Send + 'a>>;

/// The future of the figures of a member, as JSON.
pub type AskedFigures<'a> = Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'a>>;

/// Where the figures of this member come from, for the others.
pub type FiguresSource = Box<dyn Fn(Figures) -> AskedFigures<'static> + Send + Sync>;

/// Which figures of a member are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    Now,
    /// Of the last hours.
    History,
}

/// What is known of the ways to other members.
pub trait Reach: Send + Sync {
    /// Since when the member has answered without a break.
    fn active_since(&self, member: u64) -> Option<Instant>;
    /// What the member announced last, while it answers.
    fn announced(&self, member: u64) -> Option<AnnouncedMembers>;
    /// What the member announces now: it may have been replaced by another version since.
    fn ask_levels(&self, member: u64) -> AskedLevels<'_>;
    /// What the leader says of a member's log and state. None if it cannot be asked, or does not lead.
    fn ask_progress(&self, leader: u64, member: u64) -> ProgressAnswer<'_>;
    /// A member's digest of what the entries above `after` and up to `to` changed.
    fn ask_digest(&self, member: u64, after: LogIndex, to: LogIndex) -> AskedDigest<'_>;
    /// A member's digest of a part of its state.
    fn ask_recount(&self, member: u64, span: RecountSpan) -> AskedRecount<'_>;
    /// A member's hash of its history up to a revision.
    fn ask_hash(&self, member: u64, at: i64) -> AskedHash<'_>;
    /// A member's figures, for the status page.
    fn ask_figures(&self, member: u64, figures: Figures) -> AskedFigures<'_>;
    /// Others are answered from now on when they ask for the figures of this member.
    fn serve_figures(&self, source: FiguresSource);
}

/// Whether a member was removed.
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

    /// The newer list was lost with the store, and the log has other members.
    pub fn lacking_others(self) -> Roster {
        self.lacks_others.store(true, Ordering::Relaxed);
        self
    }

    /// Whether there are other members that this list may lack, until the list is replaced.
    pub fn lacks_others(&self) -> bool {
        self.lacks_others.load(Ordering::Relaxed)
    }

    /// The members from now on.
    pub fn replace(&self, members: Vec<FirstMember>) {
        self.lacks_others.store(false, Ordering::Relaxed);
        let is_learner = members.iter().any(|member| member.id == self.own && member.is_learner);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        *self.members.write() = Arc::new(members);
        self.changes.send_replace(());
    }

    /// Returns when the list says that `id`, which was a member, was removed.
    pub async fn left(&self, id: u64) {
        let mut changes = self.changes.subscribe();
        while self.standing(id) != Standing::Removed {
            let _never_closed = changes.changed().await;
        }
    }

    pub fn members(&self) -> Arc<Vec<FirstMember>> {
        Arc::clone(&self.members.read())
    }

    /// Where this member listens for peers, as its list has it.
    pub fn own_urls(&self) -> Vec<String> {
        let members = self.members();
        let own = members.iter().find(|member| member.id == self.own);
        own.map(|member| member.peer_urls.clone()).unwrap_or_default()
    }

    /// Voters and learners.
    pub fn membership(&self) -> Membership {
        let members = self.members();
        let ids = |is_learner| {
            let of_kind = members.iter().filter(move |member| member.is_learner == is_learner);
            of_kind.map(|member| member.id).collect()
        };
        Membership { voters: ids(false), learners: ids(true) }
    }

    /// All members but this one.
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

    /// Whether this member has no vote.
    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// A voter that has applied it says that this member was removed.
    ///
    /// Its own list is no reason to end: of two members, the other one may need this one's vote until it
    /// knows for good that it is alone.
    pub fn note_removed(&self) {
        self.removal.send_replace(true);
    }

    pub fn is_removed(&self) -> bool {
        *self.removal.borrow()
    }

    /// Returns when this member was removed.
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
