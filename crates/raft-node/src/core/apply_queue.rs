//! Committed entries on their way to the state machine: in order, each once, never more than fit.
//!
//! ```text
//!   committed by raft-rs ──hand_out──▶ effects ──▶ apply thread ──Event::Applied──▶ room for more
//!            └── no room: forgotten here, read again from the log by hand_out_more
//! ```
//!
//! * `applied ≤ handed ≤ stable ≤ commit`, each of them only growing. What lies between `applied` and
//!   `handed` is with the apply thread, at most `apply_bytes_max` of it and one entry more; what lies between
//!   `handed` and `stable` is in the log and waits for room there.
//! * `handed` moves one entry at a time, except over what a snapshot brings.
//! * raft-rs gives each committed entry once and forgets it. Keeping what finds no room would be a second
//!   copy of the log in memory; so it is dropped here and read again, from the cache as a rule.
//! * A change of the membership is handed out when the commit index that covers it is durable here. A member
//!   that is removed ends when a voter has applied that; the voter must not forget it in a crash, and wait
//!   for the vote of the one that has ended.
//! * While the store is lost nothing is handed out; `stable` goes on, so that the log's cache can be emptied.

use raft::eraftpb::{Entry, EntryType};

use super::Core;
use super::event::{CommittedEntry, CoreTurn, Payload};
use crate::wire::{change_batch, entry_kind};
use crate::{Fatal, LogIndex, LogPosition};

/// The least that an entry counts, so that empty ones are bounded as well.
const ENTRY_BYTES_MIN: usize = 64;

impl Core {
    /// Whether committed entries wait for earlier ones to be applied.
    pub fn is_starved(&self) -> bool {
        self.may_hand_out() && self.handed < self.stable && !self.waits_for_commit()
    }

    /// Whether the next entry is a change of the membership that is not known as committed after a crash.
    fn waits_for_commit(&self) -> bool {
        self.uncertain.front().is_some_and(|(index, _)| *index == self.handed + 1)
    }

    /// Hands out what raft-rs just gave, as far as there is room and nothing older waits. raft-rs gives each
    /// entry once; what finds no room here is read from the log again by [`Core::hand_out_more`].
    pub(super) fn hand_out(&mut self, committed: Vec<Entry>, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let Some(last) = committed.last() else { return Ok(()) };
        assert!(LogIndex(last.index) > self.stable, "entry {} was committed before", last.index);
        let next = self.stable + 1;
        self.stable = LogIndex(last.index);
        assert_eq!(
            committed.len() as u64,
            last.index + 1 - committed[0].index,
            "a gap among committed entries"
        );
        // Only if nothing is owed from before; otherwise the order says to fetch them again, later.
        if self.may_hand_out() && self.handed + 1 == next && committed[0].index == next.0 {
            for entry in committed {
                if self.applying_bytes >= self.apply_bytes_max || self.waits_for_commit() {
                    break;
                }
                self.hand_out_one(entry, turn)?;
            }
        }
        Ok(())
    }

    /// Hands out what had to wait, and lets the cache forget what it no longer must hold.
    pub(super) fn hand_out_more(&mut self, turn: &mut CoreTurn) -> Result<(), Fatal> {
        while self.is_starved() && self.applying_bytes < self.apply_bytes_max {
            let room = self.apply_bytes_max - self.applying_bytes;
            for entry in self.raw.store().read(self.handed + 1, self.stable + 1, room)? {
                if self.waits_for_commit() {
                    break;
                }
                self.hand_out_one(entry, turn)?;
            }
        }
        let stable = self.stable;
        self.raw.mut_store().evict(stable);
        Ok(())
    }

    fn hand_out_one(&mut self, entry: Entry, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let at = LogPosition::new(entry.index, entry.term);
        assert_eq!(at.index, self.handed + 1, "entries are applied in order, each once");
        let bytes = entry.data.len();
        let payload = match entry.entry_type {
            EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
            EntryType::EntryNormal => Payload::Batch(entry.data),
            EntryType::EntryConfChange => {
                self.changing.push_back(at.index);
                match change_batch(&entry.data) {
                    Ok(batch) => Payload::Change(batch),
                    // Equal on every member, and so is what they do with it.
                    Err(error) => {
                        tracing::warn!(entry.index, %error, "a malformed change is an empty entry");
                        Payload::Empty
                    }
                }
            }
            EntryType::EntryConfChangeV2 => {
                let kind = entry_kind(&entry);
                return Err(Fatal::new(format!("apply entry {}: kind {kind} is not supported", entry.index)));
            }
        };
        self.count(at.index, bytes);
        turn.committed.push(CommittedEntry { at, payload });
        Ok(())
    }

    /// Hands out an install instead of the entries up to `at`: the machine takes over the state that they led
    /// to.
    pub(super) fn hand_out_install(&mut self, at: LogPosition, turn: &mut CoreTurn) {
        assert!(at.index >= self.handed, "an install at {} after {} entries", at.index, self.handed);
        self.stable = self.stable.max(at.index);
        self.count(at.index, 0);
        turn.committed.push(CommittedEntry { at, payload: Payload::Install });
    }

    /// Everything up to `index` is with the apply step; the last of it counts as `bytes` there.
    fn count(&mut self, index: LogIndex, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES_MIN;
        self.handed = index;
        self.applying_bytes += bytes;
        self.applying.push_back((index, bytes));
    }

    /// Makes room for more. raft-rs wants to know as well: a member with unapplied changes of membership must
    /// not stand for election.
    pub(super) fn applied(&mut self, index: LogIndex) {
        assert!(index <= self.handed, "entry {index} was applied before it was handed out");
        assert!(self.handed <= self.stable, "handed out before it was committed and synced");
        while let Some((_, bytes)) = self.applying.front().filter(|(first, _)| *first <= index) {
            self.applying_bytes -= bytes;
            self.applying.pop_front();
        }
        assert_eq!(self.applying.is_empty(), self.applying_bytes == 0, "a leak in the bytes being applied");
        if index.0 > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(index.0);
        }
        self.changing.retain(|change| *change > index);
        self.note_installed(index);
        if let Some(at) = self.checkpoint_due.take() {
            self.checkpointed(at);
        }
    }
}
