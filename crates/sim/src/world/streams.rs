//! Snapshot streams: a checkpoint of one member, sent in chunks to a separate location on another
//! member's disk.
//!
//! ```text
//!   offer ─▶ export pinned ─▶ chunk · chunk … ─▶ staged, synced ─▶ message to the receiver's Raft ─▶ install or ignore
//!                               └─ a partition, a crash, a lost link ─▶ reported as failed; Raft starts again
//! ```
//!
//! * A member sends at most one stream to each other member; a new stream replaces the old one.
//! * A member receives a single store at a time, from its leader. A complete one is retained until
//!   Raft has decided about it.
//! * A stream is aborted when either member stops.

use raft_node::{Event, SnapshotOffer, SnapshotOutcome};

use super::event::{FaultPhase, WorldEvent};
use super::state::{SnapshotTransfer, World};
use crate::count::Statistic;
use crate::member::MemberError;
use crate::panics::lock;
use crate::plan::{MILLISECOND, SECOND};

/// Probability, per thousand, that a stream breaks between two chunks.
const CUT: u64 = 15;

/// One in this many streams is slow.
const SLOW: u64 = 3;

/// Probability, per thousand, that a member crashes soon after it has received a snapshot.
const CRASHES: u64 = 250;

enum StreamStep {
    Chunk,
    All,
    /// A complete store is staged, or another member leads.
    Refused,
}

impl World {
    pub(super) fn begin_stream(&mut self, from: u64, offer: SnapshotOffer) {
        let site = self.see(from);
        let (boot, to) = (site.boots, offer.to);
        let export = lock(site.store_owner()).maintainer.export();
        let at = export.applied();
        assert!(at.index >= offer.at.index, "a checkpoint that is older than the one that was offered");
        // As in the real sender, a new stream replaces the previous one; the outcome of that is not
        // reported.
        let same = |(_, stream): &(&u64, &SnapshotTransfer)| stream.from == (from, boot) && stream.to == to;
        if let Some(replaced) = self.streams.iter().find(same).map(|(number, _)| *number) {
            self.streams.remove(&replaced);
            self.abort(to, replaced);
        }
        if !self.may_send(from, to) {
            return self.report_stream((from, boot), to, SnapshotOutcome::Failed);
        }
        self.count(Statistic::SnapshotsSent);
        self.streams_begun += 1;
        let (number, message) = (self.streams_begun, offer.message(at));
        self.tell(|| format!("stream {number}: member {from} sends its checkpoint at {at:?} to {to}"));
        self.streams
            .insert(number, SnapshotTransfer { from: (from, boot), to, receiver: None, export, message });
        self.after(MILLISECOND, WorldEvent::Stream { number });
    }

    /// Sends the next chunk of a stream, or finishes it. Notifies the sender of the outcome, if it
    /// is still running.
    pub(super) fn stream(&mut self, number: u64) -> Result<(), MemberError> {
        let Some(mut stream) = self.streams.remove(&number) else { return Ok(()) };
        let ((from, boot), to) = (stream.from, stream.to);
        if self.is_away(from, boot) {
            self.abort(to, number);
            return Ok(());
        }
        let pause = self.pause_left(from).max(self.pause_left(to));
        let stall = self.store_stall_left(to);
        if let Some(left) = stall.or(pause.filter(|left| *left < 2 * SECOND)) {
            self.after(left, WorldEvent::Stream { number });
            self.streams.insert(number, stream);
            return Ok(());
        }
        if pause.is_some() || self.is_cut(&stream) || !self.greets(from, to) {
            self.abort(to, number);
            self.report_stream(stream.from, to, SnapshotOutcome::Failed);
            return Ok(());
        }
        match self.carry(number, &mut stream) {
            Ok(StreamStep::Chunk) => {
                // Some stores are large: the log arrives long before the state.
                let is_slow = self.phase == FaultPhase::Faults && number.is_multiple_of(SLOW);
                let fast = self.network.faults.delay_max.min(5 * MILLISECOND) + 200;
                let delay = self.chances.streams.within(100, if is_slow { 400 * MILLISECOND } else { fast });
                self.after(delay, WorldEvent::Stream { number });
                self.streams.insert(number, stream);
                Ok(())
            }
            Ok(StreamStep::Refused) => {
                self.report_stream(stream.from, to, SnapshotOutcome::Failed);
                Ok(())
            }
            Ok(StreamStep::All) => {
                self.report_stream(stream.from, to, SnapshotOutcome::Sent);
                if self.phase == FaultPhase::Faults && self.chances.streams.per_mille(CRASHES) {
                    // Between log and store: a crash now may interrupt the install at any step.
                    let soon = self.chances.streams.within(0, 12 * MILLISECOND);
                    self.after(soon, WorldEvent::Crash { to });
                }
                self.site(to).handle(Event::Message { from, bytes: stream.message })?;
                self.turn(to)
            }
            Err(trouble) => {
                self.report_stream(stream.from, to, SnapshotOutcome::Failed);
                Err(trouble)
            }
        }
    }

    /// Reports whether the connection is broken, or the receiver has restarted.
    fn is_cut(&mut self, stream: &SnapshotTransfer) -> bool {
        let ((from, _), to) = (stream.from, stream.to);
        let receiver = self.see(to);
        let there = receiver.up.is_some() && stream.receiver.is_none_or(|boot| boot == receiver.boots);
        let reached = self.network.reaches(from, to) && self.network.reaches(to, from);
        !there || !reached || (self.phase == FaultPhase::Faults && self.chances.streams.per_mille(CUT))
    }

    /// Copies a chunk from the sender's checkpoint to the receiver's disk.
    fn carry(&mut self, number: u64, stream: &mut SnapshotTransfer) -> Result<StreamStep, MemberError> {
        let ((from, _), to) = (stream.from, stream.to);
        let is_first = stream.receiver.replace(self.see(to).boots).is_none();
        if is_first && !self.site(to).begin_receiving(number, from)? {
            return Ok(StreamStep::Refused);
        }
        let bytes_max = self.chances.streams.within(200, 5_000) as usize;
        let chunk = stream.export.next(bytes_max);
        let chunk = match chunk {
            Err(mvcc::Error::Released) => {
                self.abort(to, number);
                return Ok(StreamStep::Refused);
            }
            chunk => chunk.map_err(|error| self.see(from).store_trouble("export", &error))?,
        };
        let receiver = self.site(to);
        match chunk {
            Some(chunk) if receiver.receive(number, &chunk)? => Ok(StreamStep::Chunk),
            None if receiver.stage(number)? => Ok(StreamStep::All),
            Some(_) | None => Ok(StreamStep::Refused),
        }
    }

    /// Discards the received part of an aborted stream.
    fn abort(&mut self, to: u64, number: u64) {
        if let Some(up) = &mut self.site(to).up
            && let Some((_, slot, _)) = up.staging.take_if(|staging| staging.0 == number)
        {
            lock(&up.store_owner).slot.end(slot);
        }
    }

    fn report_stream(&mut self, from: (u64, u64), peer: u64, outcome: SnapshotOutcome) {
        if outcome == SnapshotOutcome::Failed {
            self.count(Statistic::SnapshotsCut);
        }
        let delay = self.chances.streams.within(100, 10 * MILLISECOND);
        self.after(delay, WorldEvent::Report { to: from.0, boot: from.1, peer, outcome });
    }
}
