//! What a core remembers about snapshots on their way to others and to itself.

use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::Snapshot;

use crate::types::{LogIndex, LogPosition, NodeId, StoreState};
use crate::wire::SnapshotOffer;

/// A follower that is being brought up.
pub(crate) struct Hold {
    /// It will ask for what follows this entry.
    pub index: LogIndex,
    /// Counts down once the stream is through.
    pub ticks_left: Option<u32>,
}

/// What a core remembers about snapshots.
///
/// A snapshot on its way through a follower is in one of these places at a time, from top to bottom:
///
/// ```text
///   accepted ──ready──▶ restarting ──durable──▶ install_due ──turn──▶ installing ──Applied──▶ gone
///   within (store lost) ──stable reaches it───▶ install_due
/// ```
pub(crate) struct Snapshots {
    pub catch_up_entries: u64,
    /// Whether the machine holds what the log says it applied.
    pub store: StoreState,
    /// The state was given up: only a checkpoint from this index on replaces it. 0 at a start.
    pub reseed_from: LogIndex,
    /// Followers with a stream under way or just finished.
    pub holds: BTreeMap<NodeId, Hold>,
    /// Members that asked for the state because their store is lost, with the ticks until that is forgotten.
    pub storeless: BTreeMap<NodeId, u32>,
    /// A checkpoint or the end of a hold may allow to trim.
    pub trim_due: bool,
    /// There may be more to trim, at the next tick.
    pub trim_again: bool,
    /// Taken over by raft-rs; its ready comes next.
    pub accepted: Option<LogPosition>,
    /// Restarts of the log on their way to the disk, with the numbers of their jobs.
    pub restarting: VecDeque<(u64, LogPosition)>,
    /// To be handed out when its turn comes: the log has been restarted, or reaches it.
    pub install_due: Option<LogPosition>,
    /// Staged for a lost store; the log is not yet known to be committed and synced up to it.
    pub within: Option<LogPosition>,
    /// Handed out and not yet done.
    pub installing: Option<LogPosition>,
    /// Ticks until a lost store is asked for again.
    pub ask_in: u32,
    /// For the next turn.
    pub wanted: Option<LogIndex>,
    pub ignored: Vec<LogPosition>,
    pub offers: Vec<SnapshotOffer>,
}

impl Snapshots {
    pub fn new(catch_up_entries: u64, store: StoreState) -> Self {
        Snapshots {
            catch_up_entries,
            store,
            reseed_from: LogIndex::ZERO,
            holds: BTreeMap::new(),
            storeless: BTreeMap::new(),
            trim_due: false,
            trim_again: false,
            accepted: None,
            restarting: VecDeque::new(),
            install_due: None,
            within: None,
            installing: None,
            ask_in: 0,
            wanted: None,
            ignored: Vec::new(),
            offers: Vec::new(),
        }
    }

    /// Whether this very snapshot is: it came twice.
    pub fn is_on_its_way(&self, at: LogPosition) -> bool {
        let known = [self.accepted, self.install_due, self.within, self.installing];
        known.contains(&Some(at)) || self.restarting.iter().any(|(_, restart)| *restart == at)
    }

    /// Whether a snapshot is on its way into the log or the machine.
    pub fn under_way(&self) -> bool {
        self.within.is_some() || self.is_decided()
    }

    /// Whether one of them is certain to be installed, unless a newer one overtakes it.
    pub fn is_decided(&self) -> bool {
        self.accepted.is_some()
            || !self.restarting.is_empty()
            || self.install_due.is_some()
            || self.installing.is_some()
    }
}

pub(crate) fn position(snapshot: &Snapshot) -> LogPosition {
    let metadata = snapshot.get_metadata();
    LogPosition::new(metadata.index, metadata.term)
}
