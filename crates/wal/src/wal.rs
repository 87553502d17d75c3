//! The writer.
//!
//! ```text
//!   append ─┐                   ┌─ segment full: cut ─▶ new tail
//!   put_state ─▶ group ──sync──▶ tail ──▶ catalogue ◀── readers
//! ```
//!
//! A sync costs one copy of each payload (made by `append`), one write, one fdatasync, and one short
//! lock of the catalogue.
//!
//! * An entry is added to the catalogue only after it was synced.
//! * Every group lies in one segment. A new segment is started after the group that filled the previous
//!   one, within the same `sync`: about two syncs and a rename, once in 64 MiB.
//! * Everything reported or readable was synced. The converse does not hold if the process exits
//!   between the two.
//! * Frames are encoded on append for their final location. Therefore `append` itself writes in two
//!   rare cases.
//! * After a failed write or sync, the log does not write any more: it is unknown which writes the
//!   kernel retained, and a second fsync may succeed although the first one lost data.

use std::path::{Path, PathBuf};

use crate::entries::Catalogue;
use crate::entries::{GROUP_BYTES_MAX, SyncGroup};
use crate::format::frame::Type;
use crate::format::segment::{self, Birth, Descent, IDENTITY_BYTES_MAX, LogProperties, SPARE, Spare, Tail};
use crate::recovery::{self, Ending};
use crate::types::IoContext;
use crate::{
    Entry, Error, Fs, LogIndex, LogPosition, PAYLOAD_BYTES_MAX, Reader, Recovery, Result, Term, WalOptions,
};

/// Summary of a `sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncResult {
    /// Size of the frames without padding.
    pub bytes: u64,
    /// Number of entries and states.
    pub frames: u64,
    /// Number of new segments. If it is not zero, the caller may want to release old ones.
    pub cuts: u64,
}

/// The writer of a log, to be owned by one thread. Only one process may open a log at a time; the
/// directory is not locked here.
///
/// Dropping it loses unsynced frames, like a crash. Use [`Wal::close`] for an orderly shutdown.
#[derive(Debug)]
pub struct Wal<F: Fs> {
    fs: F,
    dir: PathBuf,
    options: WalOptions,
    /// Repeated in the header of each segment.
    lineage: LogProperties,
    /// Latest state, repeated at the head of each segment.
    state: Option<Vec<u8>>,
    tail: Tail<F::File>,
    group: SyncGroup,
    /// Entries up to this one cannot be replaced.
    start: LogIndex,
    last: LogPosition,
    spare: Spare,
    /// First segment that this process wrote without reading it back from disk.
    first_own: u64,
    reader: Reader<F>,
    /// Synced but not yet reported, because a group was written before `sync` was called.
    unreported: SyncResult,
    health: LogState,
}

/// State of the log. After a failure, the process must restart and reopen it.
#[derive(Debug)]
enum LogState {
    Sound,
    /// A call without a result failed; the next `sync` returns the error.
    Failing(Error),
    Failed,
}

impl<F: Fs> Wal<F> {
    /// Reports whether `dir` contains a log. An interrupted `create` leaves none.
    pub fn exists(fs: &F, dir: &Path) -> Result<bool> {
        Ok(!recovery::list(fs, dir)?.segments.is_empty())
    }

    /// Creates a log that starts after `start`. `identity` (opaque, at most 1 KiB) identifies the log and
    /// is repeated in each segment. Creation is atomic. The parent of `dir` must exist.
    ///
    /// The identity may be public; [`WalOptions::salt`] makes the frames unpredictable.
    pub fn create(
        fs: F,
        dir: &Path,
        identity: &[u8],
        start: LogPosition,
        options: WalOptions,
    ) -> Result<Wal<F>> {
        options.check();
        assert!(identity.len() <= IDENTITY_BYTES_MAX, "an identity of {} bytes", identity.len());
        fs.create_dir(dir).attempt("create directory", dir)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs.sync_dir(parent).attempt("sync directory", parent)?;
        }
        let listing = recovery::list(&fs, dir)?;
        if !listing.segments.is_empty() {
            return Err(Error::Exists { dir: dir.to_path_buf() });
        }
        let (base, descent, salt) = (start, Descent::Origin, options.salt);
        let birth = Birth { sequence: 1, base, descent, identity, salt, state: None };
        let tail = segment::begin(&fs, dir, &birth, listing.spare, options.segment_bytes)?;
        let catalogue = Catalogue::new(birth.sequence, start);
        let lineage = LogProperties::of(identity.to_vec(), Some((salt, birth.sequence)));
        Ok(Wal::assemble(fs, dir, options, lineage, None, tail, Spare::Absent, catalogue))
    }

    /// Opens a log, verifies every byte, and drops an incomplete group at its end.
    ///
    /// Corruption of synced bytes is [`Error::Corrupt`]. Only corruption of the very last group of a log
    /// that was not closed can be mistaken for a torn tail, reported in [`Recovery::torn_bytes`].
    pub fn open(fs: F, dir: &Path, options: WalOptions) -> Result<(Wal<F>, Recovery)> {
        options.check();
        let found = recovery::recover(&fs, dir)?;
        // If the previous process exited between a write and its sync, the bytes read here, and the names,
        // may be in memory only. Make them durable before they are used.
        found
            .tail
            .renew(found.last_group)
            .attempt("renew the last group of log segment", &found.tail.path)?;
        fs.sync_dir(dir).attempt("sync directory", dir)?;

        let recovery = found.recovery();
        // A log without a salt gets one from its next segment on. Existing segments do not change.
        let salt = found.salt.unwrap_or((options.salt, found.tail.sequence + 1));
        let (lineage, state) = (LogProperties::of(found.identity, Some(salt)), found.state);
        let mut wal =
            Wal::assemble(fs, dir, options, lineage, state, found.tail, found.spare, found.catalogue);
        wal.first_own = wal.tail.sequence + 1;
        wal.discard(&found.void)?;
        match found.ending {
            Ending::Fresh => {}
            // The new segment's header records the end of the old one: remains after it need not be wiped,
            // and corruption before it can no longer pass for a torn tail.
            Ending::Used => wal.cut(wal.last)?,
        }
        Ok((wal, recovery))
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where a log is put together")]
    fn assemble(
        fs: F,
        dir: &Path,
        options: WalOptions,
        lineage: LogProperties,
        state: Option<Vec<u8>>,
        tail: Tail<F::File>,
        spare: Spare,
        catalogue: Catalogue,
    ) -> Wal<F> {
        let (start, last) = (catalogue.start().index, catalogue.last());
        let first_own = tail.sequence;
        let reader = Reader::new(fs.clone(), dir.to_path_buf(), lineage.clone(), catalogue);
        Wal {
            fs,
            dir: dir.to_path_buf(),
            options,
            lineage,
            state,
            tail,
            group: SyncGroup::default(),
            start,
            last,
            spare,
            first_own,
            reader,
            unreported: SyncResult::default(),
            health: LogState::Sound,
        }
    }

    /// Adds an entry to the group. An existing index replaces that entry and all later ones.
    ///
    /// Panics on a gap, a decreasing term, a released index, and a payload above [`PAYLOAD_BYTES_MAX`].
    ///
    /// Writes to the disk in two rare cases: if the group has reached 8 MiB, or if the entry replaces one
    /// in an earlier segment. The next `sync` returns an error of such a write.
    pub fn append(&mut self, entry: Entry<'_>) {
        let Entry { index, term, kind, payload } = entry;
        assert!(payload.len() <= PAYLOAD_BYTES_MAX, "entry {index} has {} bytes", payload.len());
        if !self.is_sound() {
            return; // the end of the log is unknown; `sync` returns the error
        }
        assert!(index > self.start, "entry {index} was released");
        assert!(index <= self.last.index.next(), "gap in the log: {index} after {}", self.last.index);
        let before = LogPosition { index: LogIndex(index.0 - 1), term: self.term_before(index) };
        assert!(term >= before.term, "entry {index} of term {term} after one of term {}", before.term);
        // Must precede the check of the base, because it may start a new segment.
        if self.group.bytes.len() >= GROUP_BYTES_MAX {
            self.attempt(Wal::flush);
        }
        if self.is_sound() && index <= self.tail.base.index {
            self.attempt(|wal| wal.turn_back(before));
        }
        if self.is_sound() {
            self.last = LogPosition { index, term };
            self.group.push(&self.tail, Type::Entry, kind, self.last, payload);
        }
    }

    /// Adds an opaque state to the group; `open` returns the latest one.
    ///
    /// A crash may preserve a prefix of an unsynced group: of two dependent records, put the dependent one
    /// second.
    pub fn put_state(&mut self, state: &[u8]) {
        assert!(state.len() <= PAYLOAD_BYTES_MAX, "a state of {} bytes", state.len());
        if !self.is_sound() {
            return;
        }
        if self.group.bytes.len() >= GROUP_BYTES_MAX {
            self.attempt(Wal::flush);
        }
        if self.is_sound() {
            self.group.push(&self.tail, Type::State, 0, LogPosition::default(), state);
            state.clone_into(self.state.get_or_insert_default());
        }
    }

    /// Makes the group durable with one write and one fdatasync. Free if the group is empty.
    ///
    /// An error poisons the log: every later call fails, and only reopening it shows which writes survived.
    pub fn sync(&mut self) -> Result<SyncResult> {
        self.guarded(Wal::flush)?;
        Ok(std::mem::take(&mut self.unreported))
    }

    /// Restarts the log after `start` with `state`, for a follower that received a snapshot instead of
    /// entries. All entries and the unsynced group are discarded. Atomic, and durable on return.
    ///
    /// A crash before the rename of the new segment leaves the old log unchanged. After it, the log is the
    /// new one, and the old segments are void until the next start removes them. There is no intermediate
    /// state.
    pub fn restart_at(&mut self, start: LogPosition, state: &[u8]) -> Result<()> {
        assert!(state.len() <= PAYLOAD_BYTES_MAX, "a state of {} bytes", state.len());
        self.guarded(|wal| {
            // Frames in the group are older than the snapshot.
            wal.group.clear();
            wal.state = Some(state.to_vec());
            wal.begin(start, Descent::Origin)?;
            let sequence = wal.tail.sequence;
            // From here on the log is the new one, even if old files remain.
            let mut catalogue = wal.reader.catalogue();
            let void: Vec<u64> = catalogue.segments().collect();
            *catalogue = Catalogue::new(sequence, start);
            drop(catalogue);
            (wal.start, wal.last) = (start.index, start);
            wal.discard(&void)
        })
    }

    /// Removes whole segments that contain only entries below `index`. Returns their number.
    ///
    /// Indexes continue, and the position before the first retained entry stays known; a follower's first
    /// missing entry is checked against it.
    ///
    /// The log may retain up to a segment more than requested, and always retains the latest segment.
    /// Entries below `index` must be applied and covered by the state that a restart starts from: they can
    /// no longer be replaced.
    pub fn release_before(&mut self, index: LogIndex) -> Result<usize> {
        assert!(index <= self.last.index.next(), "a release of entries that do not exist, before {index}");
        self.guarded(|wal| {
            let mut catalogue = wal.reader.catalogue();
            let sequences = catalogue.releasable(index);
            // Update the readers' view first: none may open a file that is about to become another segment.
            catalogue.release(&sequences);
            wal.start = catalogue.start().index;
            drop(catalogue);
            wal.discard(&sequences)?;
            Ok(sequences.len())
        })
    }

    /// Closes the log: writes the group, and a mark that protects it from being mistaken for a torn tail.
    pub fn close(mut self) -> Result<()> {
        self.guarded(|wal| {
            // Two groups: a mark in the same group as the last entries could be lost together with them.
            wal.flush()?;
            wal.group.push(&wal.tail, Type::Mark, 0, LogPosition::default(), &[]);
            wal.flush()
        })
    }

    /// Returns the last appended entry, synced or not, or the start if there is none. [`Reader::last`] is
    /// the last synced one.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Returns the size of the unsynced frames, for callers that limit the size of a group.
    pub fn group_bytes(&self) -> usize {
        self.group.bytes.len()
    }

    /// Returns a handle for reading synced entries.
    pub fn reader(&self) -> Reader<F> {
        self.reader.clone()
    }

    /// Returns the term of the entry before `index`, synced or not.
    fn term_before(&self, index: LogIndex) -> Term {
        if index == self.last.index.next() {
            return self.last.term;
        }
        let before = LogIndex(index.0 - 1);
        let term = self.group.term(before).or_else(|| self.reader.term(before));
        term.expect("an entry between the start and the end has a term")
    }

    /// Writes and syncs the group, and starts a new segment if that filled the current one.
    ///
    /// The order provides the durability guarantee: write, sync, and only then update the catalogue, which
    /// readers use, and the report, which the caller uses.
    fn flush(&mut self) -> Result<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let (frame_bytes, step) = (self.group.bytes.len() as u64, self.group.growth_step());
        let SyncGroup { bytes, crc, .. } = &mut self.group;
        self.tail
            .write(bytes, *crc, step, self.options.segment_bytes)
            .attempt("write and sync log segment", &self.tail.path)?;
        self.unreported.bytes += frame_bytes;
        self.unreported.frames += self.group.frames;

        let mut catalogue = self.reader.catalogue();
        for staged in &self.group.entries {
            catalogue.entry(staged.position, staged.offset);
        }
        assert_eq!(catalogue.last(), self.last, "the catalogue ends where the log does");
        drop(catalogue);
        self.group.clear();
        if self.tail.end >= self.options.segment_bytes {
            self.cut(self.last)?;
        }
        Ok(())
    }

    /// Starts a new segment for a conflict below the base of the tail. Every segment thus contains only
    /// entries above its base, and the base of the oldest one is the start of the log.
    fn turn_back(&mut self, base: LogPosition) -> Result<()> {
        self.flush()?;
        self.cut(base)
    }

    /// Continues in a new segment after `base`. The tail is synced at this point, so the new header can
    /// record its end. The base is the last entry or, at a conflict, an earlier one.
    fn cut(&mut self, base: LogPosition) -> Result<()> {
        assert!(self.group.is_empty(), "a cut would lose the group");
        self.begin(base, Descent::Continues { end: self.tail.end, crc: self.tail.crc })?;
        self.reader.catalogue().cut(self.tail.sequence, base);
        self.last = base;
        self.unreported.cuts += 1;
        Ok(())
    }

    /// Creates a new tail. The spare is consumed even on failure, because the log is then poisoned.
    fn begin(&mut self, base: LogPosition, descent: Descent) -> Result<()> {
        let sequence = self.tail.sequence + 1;
        let (identity, salt, state) =
            (self.lineage.identity.as_slice(), self.lineage.salt, self.state.as_deref());
        let birth = Birth { sequence, base, descent, identity, salt, state };
        let spare = std::mem::replace(&mut self.spare, Spare::Absent);
        self.tail = segment::begin(&self.fs, &self.dir, &birth, spare, self.options.segment_bytes)?;
        Ok(())
    }

    /// Removes segments in the given order. Keeps one full-size segment as the spare, to save block
    /// allocations.
    ///
    /// A segment that this process has read back is not reused: read-ahead loads a file into the page cache
    /// in large folios, and a small write to such a folio is a large one on disk.
    fn discard(&mut self, sequences: &[u64]) -> Result<()> {
        for &sequence in sequences {
            let path = segment::path(&self.dir, sequence);
            let (_, bytes) = segment::open(&self.fs, &path)?;
            let reusable = sequence >= self.first_own && bytes >= self.options.segment_bytes;
            if self.spare == Spare::Absent && reusable {
                let spare = self.dir.join(SPARE);
                self.fs.rename(&path, &spare).attempt("set aside log segment", &path)?;
                self.spare = Spare::Present;
            } else {
                self.fs.remove(&path).attempt("remove log segment", &path)?;
            }
            // Sync after each removal: a power failure that undoes some of them must not leave a gap.
            self.fs.sync_dir(&self.dir).attempt("sync directory", &self.dir)?;
        }
        Ok(())
    }

    fn is_sound(&self) -> bool {
        matches!(self.health, LogState::Sound)
    }

    /// Runs a step for a call that cannot return an error, and stores the error for the next `sync`.
    fn attempt(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = step(self) {
            self.health = LogState::Failing(error);
        }
    }

    /// Runs a step unless an earlier one failed; a failure poisons the log.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        match std::mem::replace(&mut self.health, LogState::Failed) {
            LogState::Failing(error) => Err(error),
            LogState::Failed if !base::mutant("goes-on-after-a-failure") => Err(Error::Poisoned),
            LogState::Sound | LogState::Failed => {
                // A step that panics leaves the log poisoned as well.
                let done = step(self)?;
                self.health = LogState::Sound;
                Ok(done)
            }
        }
    }
}
