//! State of the snapshots in progress, outgoing and incoming.

use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::Snapshot;

use crate::types::{LogIndex, LogPosition, NodeId, StoreState};
use crate::wire::SnapshotOffer;

/// Retains the log for a follower that receives a snapshot.
pub(crate) struct Hold {
    /// The follower will request the entries after this one.
    pub index: LogIndex,
    /// Ticks left after the stream is complete.
    pub ticks_left: Option<u32>,
}

/// Snapshot state of a core.
///
/// A received snapshot is in one of these fields at a time, from top to bottom:
///
/// ```text
///   accepted ──ready──▶ restarting ──durable──▶ install_due ──turn──▶ installing ──Applied──▶ done
///   within (store lost) ──stable reaches it───▶ install_due
/// ```
pub(crate) struct Snapshots {
    pub catch_up_entries: u64,
    /// Presence of the machine's state up to the applied index of the log.
    pub store: StoreState,
    /// The state was discarded: only a checkpoint from this index on replaces it. 0 at a start.
    pub reseed_from: LogIndex,
    /// Followers with a running or recent stream.
    pub holds: BTreeMap<NodeId, Hold>,
    /// Members that requested the state because their store is lost, with the ticks until the entry expires.
    pub storeless: BTreeMap<NodeId, u32>,
    /// A checkpoint or a released hold may permit truncation.
    pub trim_due: bool,
    /// There may be more to truncate at the next tick.
    pub trim_again: bool,
    /// Accepted by raft-rs; its ready comes next.
    pub accepted: Option<LogPosition>,
    /// Restarts of the log in progress on the disk, with the numbers of their jobs.
    pub restarting: VecDeque<(u64, LogPosition)>,
    /// To be output: the log has been restarted, or reaches it.
    pub install_due: Option<LogPosition>,
    /// Staged for a lost store; the log is not yet known to be committed and synced up to it.
    pub within: Option<LogPosition>,
    /// Output, but not installed yet.
    pub installing: Option<LogPosition>,
    /// Ticks until the state is requested again.
    pub ask_in: u32,
    /// Effects for the next poll.
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

    /// Reports whether this snapshot is in progress, so that a duplicate is detected.
    pub fn is_on_its_way(&self, at: LogPosition) -> bool {
        let known = [self.accepted, self.install_due, self.within, self.installing];
        known.contains(&Some(at)) || self.restarting.iter().any(|(_, restart)| *restart == at)
    }

    /// Reports whether a snapshot is in progress in the log or the machine.
    pub fn under_way(&self) -> bool {
        self.within.is_some() || self.is_decided()
    }

    /// Reports whether a snapshot will certainly be installed, unless a later one supersedes it.
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
