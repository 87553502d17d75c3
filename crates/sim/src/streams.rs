//! Snapshots on their way: a checkpoint of one member, chunk by chunk, into a place beside another one's store.
//!
//! ```text
//!   offer ─▶ export pinned ─▶ chunk · chunk … ─▶ staged, synced ─▶ message to the receiver's Raft ─▶ install or ignore
//!                               └─ a cut, a crash, a lost way ─▶ reported as failed; Raft begins again
//! ```
//!
//! * One store is received at a time; one that is whole keeps its place until Raft has made up its mind.
//! * A stream ends with either of its members' runs.

use bytes::Bytes;
use mvcc::{Export, Staging};
use raft_node::{Event, Position, SnapshotOffer, SnapshotOutcome};

use crate::count::Count;
use crate::panics::lock;
use crate::plan::{MILLISECOND, SECOND};
use crate::site::{Site, Trouble};
use crate::world::{Happening, World};

/// How often a stream breaks off between two chunks, of a thousand.
const CUT: u64 = 15;

/// How often a member crashes soon after it has received a snapshot, of a thousand.
const CRASHES: u64 = 250;

pub(crate) struct Stream {
    from: (u64, u64),
    to: u64,
    /// The receiver's run, once it has begun to receive.
    receiver: Option<u64>,
    export: Export,
    message: Bytes,
}

/// How far one step of a stream came.
enum Carried {
    Chunk,
    All,
    /// Another store has the place.
    Refused,
}

impl Site {
    /// Raft has no use for the snapshot that was staged at `at`.
    pub fn discard(&mut self, at: Position) {
        let disk = self.store_disk.clone();
        let mut vault = lock(self.vault());
        if vault.staged.take_if(|staged| staged.applied().index == at.index).is_some() {
            disk.discard_staged();
        }
    }

    /// Makes room for a stream: an older one that is not whole gives way. False if a whole store has the place.
    fn begin_receiving(&mut self, number: u64) -> Result<bool, Trouble> {
        if lock(self.vault()).staged.is_some() {
            return Ok(false);
        }
        let (disk, options) = (self.store_disk.clone(), self.store_options());
        let up = self.up.as_mut().expect("only a running member receives");
        up.staging = None;
        let staging = Staging::begin(Box::new(disk.incoming()), &options);
        let staging = staging.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        self.up.as_mut().expect("it is up").staging = Some((number, staging));
        Ok(true)
    }

    /// Takes in the next chunk of a stream. False if another one has taken its place.
    fn receive(&mut self, number: u64, chunk: &[u8]) -> Result<bool, Trouble> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, staging)) = up.staging.as_mut().filter(|(under_way, _)| *under_way == number) else {
            return Ok(false);
        };
        let added = staging.add(chunk);
        added.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        Ok(true)
    }

    /// The stream has ended: what came is checked as a whole and made durable. False as above.
    fn stage(&mut self, number: u64) -> Result<bool, Trouble> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, staging)) = up.staging.take_if(|(under_way, _)| *under_way == number) else {
            return Ok(false);
        };
        let staged = staging.finish().map_err(|error| self.store_trouble("stage a snapshot", &error))?;
        lock(self.vault()).staged = Some(staged);
        Ok(true)
    }
}

impl World {
    pub(crate) fn begin_stream(&mut self, from: u64, offer: SnapshotOffer) {
        let site = self.see(from);
        let (boot, to) = (site.boots, offer.to);
        let export = lock(site.vault()).maintainer.export();
        let at = export.applied();
        assert!(at.index >= offer.at.index, "a checkpoint that is older than the one that was offered");
        self.count(Count::SnapshotsSent);
        self.streams_begun += 1;
        let (number, message) = (self.streams_begun, offer.message(at.index, at.term));
        self.tell(|| format!("stream {number}: member {from} sends its checkpoint at {at:?} to {to}"));
        self.streams.insert(number, Stream { from: (from, boot), to, receiver: None, export, message });
        self.after(MILLISECOND, Happening::Stream { number });
    }

    /// The next chunk of a stream, or its end. Whatever ends it, its sender hears of it, if it is still there.
    pub(crate) fn stream(&mut self, number: u64) -> Result<(), Trouble> {
        let Some(mut stream) = self.streams.remove(&number) else { return Ok(()) };
        let ((from, boot), to) = (stream.from, stream.to);
        if self.is_away(from, boot) {
            self.abort(to, number);
            return Ok(());
        }
        let pause = self.pause_left(from).max(self.pause_left(to));
        if let Some(left) = pause.filter(|left| *left < 2 * SECOND) {
            self.after(left, Happening::Stream { number });
            self.streams.insert(number, stream);
            return Ok(());
        }
        if pause.is_some() || self.is_cut(&stream) {
            self.abort(to, number);
            self.report_stream(stream.from, to, SnapshotOutcome::Failed);
            return Ok(());
        }
        match self.carry(number, &mut stream) {
            Ok(Carried::Chunk) => {
                let delay_max = self.network.weather.delay_max.min(5 * MILLISECOND) + 200;
                let delay = self.chance.within(100, delay_max);
                self.after(delay, Happening::Stream { number });
                self.streams.insert(number, stream);
                Ok(())
            }
            Ok(Carried::Refused) => {
                self.report_stream(stream.from, to, SnapshotOutcome::Failed);
                Ok(())
            }
            Ok(Carried::All) => {
                self.report_stream(stream.from, to, SnapshotOutcome::Sent);
                if !self.healed && self.chance.per_mille(CRASHES) {
                    // Between log and store: a crash now meets the install at any of its steps.
                    let soon = self.chance.within(0, 12 * MILLISECOND);
                    self.after(soon, Happening::Crash { to });
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
    fn is_cut(&mut self, stream: &Stream) -> bool {
        let ((from, _), to) = (stream.from, stream.to);
        let receiver = self.see(to);
        let there = receiver.up.is_some() && stream.receiver.is_none_or(|boot| boot == receiver.boots);
        let reached = self.network.reaches(from, to) && self.network.reaches(to, from);
        !there || !reached || (!self.healed && self.chance.per_mille(CUT))
    }

    /// Takes a chunk from the sender's checkpoint to the receiver's disk.
    fn carry(&mut self, number: u64, stream: &mut Stream) -> Result<Carried, Trouble> {
        let ((from, _), to) = (stream.from, stream.to);
        let is_first = stream.receiver.replace(self.see(to).boots).is_none();
        if is_first && !self.site(to).begin_receiving(number)? {
            return Ok(Carried::Refused);
        }
        let bytes_max = self.chance.within(200, 5_000) as usize;
        let chunk = stream.export.next(bytes_max);
        let chunk = chunk.map_err(|error| self.see(from).store_trouble("export", &error))?;
        let receiver = self.site(to);
        match chunk {
            Some(chunk) if receiver.receive(number, &chunk)? => Ok(Carried::Chunk),
            None if receiver.stage(number)? => Ok(Carried::All),
            Some(_) | None => Ok(Carried::Refused),
        }
    }

    /// What was received of a stream that broke off is of no use.
    fn abort(&mut self, to: u64, number: u64) {
        if let Some(up) = &mut self.site(to).up {
            up.staging.take_if(|(under_way, _)| *under_way == number);
        }
    }

    fn report_stream(&mut self, from: (u64, u64), peer: u64, outcome: SnapshotOutcome) {
        if outcome == SnapshotOutcome::Failed {
            self.count(Count::SnapshotsCut);
        }
        let delay = self.chance.within(100, 10 * MILLISECOND);
        self.after(delay, Happening::Report { to: from.0, boot: from.1, peer, outcome });
    }
}
