//! Snapshots on their way: a checkpoint of one member, chunk by chunk, into a place next to another one's
//! store.
//!
//! ```text
//!   offer ─▶ export pinned ─▶ chunk · chunk … ─▶ staged, synced ─▶ message to the receiver's Raft ─▶ install or ignore
//!                               └─ a cut, a crash, a lost way ─▶ reported as failed; Raft begins again
//! ```
//!
//! * A member sends one stream to each other member at a time; a newer one replaces it.
//! * One store is received at a time, of the leader that the receiver knows; one that is whole keeps its place
//!   until Raft has made up its mind.
//! * A stream ends with either of its members' runs.

use raft_node::{Event, SnapshotOffer, SnapshotOutcome};

use super::event::{FaultPhase, WorldEvent};
use super::state::{SnapshotTransfer, World};
use crate::count::Statistic;
use crate::member::MemberError;
use crate::panics::lock;
use crate::plan::{MILLISECOND, SECOND};

/// How often a stream breaks off between two chunks, of a thousand.
const CUT: u64 = 15;

/// Each so many streams, one is slow.
const SLOW: u64 = 3;

/// How often a member crashes soon after it has received a snapshot, of a thousand.
const CRASHES: u64 = 250;

/// How far one step of a stream came.
enum StreamStep {
    Chunk,
    All,
    /// Another store has the place, or another member leads.
    Refused,
}

impl World {
    pub(super) fn begin_stream(&mut self, from: u64, offer: SnapshotOffer) {
        let site = self.see(from);
        let (boot, to) = (site.boots, offer.to);
        let export = lock(site.store_owner()).maintainer.export();
        let at = export.applied();
        assert!(at.index >= offer.at.index, "a checkpoint that is older than the one that was offered");
        // As in a real sender: a new stream takes the place of the one before it, of which nothing is
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

    /// The next chunk of a stream, or its end. Its sender is notified of each end, if it is still there.
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
                // Some stores are large: the log is there long before the state.
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
                    // Between log and store: a crash now meets the install at any of its steps.
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

    /// Whether the way between sender and receiver is no more, or the receiver is another run.
    fn is_cut(&mut self, stream: &SnapshotTransfer) -> bool {
        let ((from, _), to) = (stream.from, stream.to);
        let receiver = self.see(to);
        let there = receiver.up.is_some() && stream.receiver.is_none_or(|boot| boot == receiver.boots);
        let reached = self.network.reaches(from, to) && self.network.reaches(to, from);
        !there || !reached || (self.phase == FaultPhase::Faults && self.chances.streams.per_mille(CUT))
    }

    /// Takes a chunk from the sender's checkpoint to the receiver's disk.
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

    /// What was received of a stream that broke off is of no use.
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
