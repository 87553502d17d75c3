//! State transitions of watchers.
//!
//! Every transition calls `leave`, which makes a watcher idle, followed by one of the functions
//! that assign a state. So lists, counts and the watcher change together.

use super::state::{Hub, HubWatcher, WatcherState};
use crate::interest::InterestGroup;
use crate::wire::ParcelContent;

impl Hub {
    pub(super) fn join_group(&mut self, watcher: u32, wanted: InterestGroup) {
        let group = match self.interest.find(&wanted) {
            Some(group) => group,
            None => self.interest.insert(wanted),
        };
        let in_group = self.interest.groups[group].add(watcher);
        let watcher = &mut self.watchers[watcher];
        (watcher.group, watcher.in_group) = (group, in_group);
        let owner = self.streams[watcher.stream].owner;
        self.owners.add_key(owner, self.interest.groups[group].key_bytes());
    }

    pub(super) fn leave_group(&mut self, watcher: u32) {
        let HubWatcher { group, in_group, stream, .. } = self.watchers[watcher];
        self.owners.remove_key(self.streams[stream].owner, self.interest.groups[group].key_bytes());
        if let Some(moved) = self.interest.groups[group].remove(in_group) {
            self.watchers[moved].in_group = in_group;
        }
        if self.interest.groups[group].members().is_empty() {
            self.interest.remove(group);
        }
    }

    pub(super) fn leave(&mut self, slot: u32) {
        let watcher = &self.watchers[slot];
        let (next, place, stream, state) = (watcher.next, watcher.place, watcher.stream, watcher.state);
        let moved = match state {
            WatcherState::Live => {
                self.live -= 1;
                let (group, in_group) = (watcher.group, watcher.in_group);
                let (in_group, moved) = self.interest.groups[group].set_idle(in_group);
                self.watchers[moved.0].in_group = moved.1;
                self.watchers[slot].in_group = in_group;
                None
            }
            WatcherState::Lagging => self.lagging.remove(next, place),
            WatcherState::Joining => self.joining.remove(next, place),
            WatcherState::Future => self.future.remove(next, place),
            WatcherState::Parked => {
                self.parked -= 1;
                let parked = &mut self.streams[stream].parked;
                parked.swap_remove(place as usize);
                parked.get(place as usize).copied()
            }
            WatcherState::Compacted => None,
            WatcherState::Idle => unreachable!("an idle watcher has left already"),
        };
        if let Some(moved) = moved {
            self.watchers[moved].place = place;
        }
        if state != WatcherState::Live {
            self.streams[stream].unsynced -= 1;
        }
        self.watchers[slot].state = WatcherState::Idle;
    }

    /// Makes an idle watcher live: it gets the events after the hub's position.
    pub(super) fn make_live(&mut self, slot: u32) {
        let watcher = &mut self.watchers[slot];
        assert_eq!(watcher.state, WatcherState::Idle, "a watcher leaves its state first");
        watcher.state = WatcherState::Live;
        let (in_group, moved) = self.interest.groups[watcher.group].set_live(watcher.in_group);
        self.watchers[moved.0].in_group = moved.1;
        self.watchers[slot].in_group = in_group;
        self.live += 1;
    }

    /// Gives an idle watcher any state but `Live`.
    pub(super) fn make(&mut self, slot: u32, state: WatcherState, next: i64) {
        let watcher = &mut self.watchers[slot];
        assert_eq!(watcher.state, WatcherState::Idle, "a watcher leaves its state first");
        let stream = &mut self.streams[watcher.stream];
        stream.unsynced += 1;
        (watcher.state, watcher.next) = (state, next);
        watcher.place = match state {
            WatcherState::Lagging => self.lagging.insert(next, slot),
            WatcherState::Joining => self.joining.insert(next, slot),
            WatcherState::Future => self.future.insert(next, slot),
            WatcherState::Parked => {
                self.parked += 1;
                stream.parked.push(slot);
                stream.parked.len() as u32 - 1
            }
            WatcherState::Compacted => 0,
            WatcherState::Live | WatcherState::Idle => unreachable!("made by other functions"),
        };
    }

    /// Changes the state of a watcher to any state but `Live`.
    pub(super) fn move_to(&mut self, slot: u32, state: WatcherState, next: i64) {
        self.leave(slot);
        self.make(slot, state, next);
    }

    /// Cancels a watcher with a compacted next revision. Its id stays in use, as in etcd.
    pub(super) fn cancel_compacted(&mut self, slot: u32, compact_revision: i64) {
        self.leave(slot);
        self.leave_group(slot);
        self.make(slot, WatcherState::Compacted, 0);
        let watcher = &self.watchers[slot];
        let (stream, watch_id) = (watcher.stream, watcher.watch_id);
        self.push_answer(stream, 0, ParcelContent::Canceled { watch_id, compact_revision });
    }

    pub(super) fn remove_watcher(&mut self, slot: u32) {
        let is_grouped = self.watchers[slot].state != WatcherState::Compacted;
        self.leave(slot);
        if is_grouped {
            self.leave_group(slot);
        }
        let watcher = self.watchers.remove(slot);
        let stream = &mut self.streams[watcher.stream];
        stream.watchers.remove(&watcher.watch_id);
        stream.notified -= usize::from(watcher.is_notified);
        self.owners.remove_watcher(stream.owner);
    }
}
