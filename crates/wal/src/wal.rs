//! The writer.
//!
//! ```text
//!   append ─┐                   ┌─ segment full: cut ─▶ new tail
//!   put_state ─▶ group ──sync──▶ tail ──▶ catalogue ◀── readers
//! ```
//!
//! One sync: one copy of each payload (made by `append`), one write, one fdatasync, one short lock of the
//! catalogue.
//!
//! * The catalogue learns of an entry only after it was synced.
//! * Every group lies in one segment. The cut comes after the group that filled a segment, within the same
//!   `sync`: about two syncs and a rename, once in 64 MiB.
//! * All that is reported or readable was synced; what was synced may be there although it was never
//!   reported, if the process ended between the two.
//! * Frames are encoded when they are appended, for the place where they will lie; hence the two rare cases
//!   in which `append` itself must write (see there).
//! * After a failed write or sync nothing is written any more: what the kernel kept of it is unknown, and a
//!   second fsync may report as safe what the first one lost.

use std::path::{Path, PathBuf};

use crate::entries::Catalogue;
use crate::entries::{GROUP_BYTES_MAX, SyncGroup};
use crate::format::frame::Type;
use crate::format::segment::{self, Birth, Descent, IDENTITY_BYTES_MAX, Lineage, SPARE, Spare, Tail};
use crate::recovery::{self, Ending};
use crate::types::IoContext;
use crate::{
    Entry, Error, Fs, LogIndex, LogPosition, PAYLOAD_BYTES_MAX, Reader, Recovery, Result, Term, WalOptions,
};

/// What one `sync` made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncResult {
    /// Bytes of frames; the padding is not counted.
    pub bytes: u64,
    /// Entries and states.
    pub frames: u64,
    /// Segments begun: a caller who wants to release may do so when this is not zero.
    pub cuts: u64,
}

/// The one writer of a log. It is to be owned by one thread, and one process at a time may have a log open:
/// nothing here locks the directory.
///
/// Dropping it loses what was not synced, as a crash would; [`Wal::close`] ends it in good order.
#[derive(Debug)]
pub struct Wal<F: Fs> {
    fs: F,
    dir: PathBuf,
    options: WalOptions,
    /// Repeated in the header of each segment.
    lineage: Lineage,
    /// The latest state put, repeated at the head of each segment.
    state: Option<Vec<u8>>,
    tail: Tail<F::File>,
    group: SyncGroup,
    /// Entries up to this one are settled: never appended again.
    start: LogIndex,
    /// The last entry appended.
    last: LogPosition,
    spare: Spare,
    /// Segments from this one on were written by this process, and not read back from the disk.
    first_own: u64,
    reader: Reader<F>,
    /// Synced but not yet reported, because a group had to be written before `sync` was called.
    unreported: SyncResult,
    health: Health,
}

/// After a failure the log has to be opened anew, by a restart of the process.
#[derive(Debug)]
enum Health {
    Sound,
    /// Failed in a call that cannot say so; the next `sync` does.
    Failing(Error),
    Failed,
}

impl<F: Fs> Wal<F> {
    /// Whether `dir` holds a log. A `create` that was cut short leaves none.
    pub fn exists(fs: &F, dir: &Path) -> Result<bool> {
        Ok(!recovery::list(fs, dir)?.segments.is_empty())
    }

    /// Makes a log whose first entry will be the one after `start`. `identity` (opaque, at most 1 KiB) is
    /// repeated in each segment: whose log this is. The log exists wholly or not at all. The parent of `dir`
    /// must exist.
    ///
    /// What makes the frames unpredictable is [`WalOptions::salt`]; the identity may be public.
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
        let lineage = Lineage::of(identity.to_vec(), Some((salt, birth.sequence)));
        Ok(Wal::assemble(fs, dir, options, lineage, None, tail, Spare::Absent, catalogue))
    }

    /// Opens a log, checks every byte of it, and drops an unfinished group at its end.
    ///
    /// Damage to what was synced is [`Error::Corrupt`]; only damage to the very last group of a log that was
    /// not closed can be taken for a torn tail, and shows in [`Recovery::torn_bytes`].
    pub fn open(fs: F, dir: &Path, options: WalOptions) -> Result<(Wal<F>, Recovery)> {
        options.check();
        let found = recovery::recover(&fs, dir)?;
        // What was read may be in memory only, names included, if the last process ended between a write and
        // its sync. It is about to be trusted.
        found
            .tail
            .renew(found.last_group)
            .attempt("renew the last group of log segment", &found.tail.path)?;
        fs.sync_dir(dir).attempt("sync directory", dir)?;

        let recovery = found.recovery();
        // A log without a salt gets one from its next segment on: the segments that are there stay as they
        // are.
        let salt = found.salt.unwrap_or((options.salt, found.tail.sequence + 1));
        let (lineage, state) = (Lineage::of(found.identity, Some(salt)), found.state);
        let mut wal =
            Wal::assemble(fs, dir, options, lineage, state, found.tail, found.spare, found.catalogue);
        wal.first_own = wal.tail.sequence + 1;
        wal.discard(&found.void)?;
        match found.ending {
            Ending::Fresh => {}
            // The new segment's header proves where the old one ends: remains after that point need no
            // wiping, and damage before it can no longer pass for a torn tail.
            Ending::Used => wal.cut(wal.last)?,
        }
        Ok((wal, recovery))
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where a log is put together")]
    fn assemble(
        fs: F,
        dir: &Path,
        options: WalOptions,
        lineage: Lineage,
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
            health: Health::Sound,
        }
    }

    /// Adds an entry to the group. An index that exists already replaces that entry and all after it.
    ///
    /// Panics on a gap, on a term that goes back, on an index that was released, and on a payload above
    /// [`PAYLOAD_BYTES_MAX`].
    ///
    /// Touches the disk only in two rare cases: when the group has reached 8 MiB, and when the entry replaces
    /// one of an earlier segment. The next `sync` returns the failure.
    pub fn append(&mut self, entry: Entry<'_>) {
        let Entry { index, term, kind, payload } = entry;
        assert!(payload.len() <= PAYLOAD_BYTES_MAX, "entry {index} has {} bytes", payload.len());
        if !self.is_sound() {
            return; // where the log ends is unknown; `sync` returns the error
        }
        assert!(index > self.start, "entry {index} was released");
        assert!(index <= self.last.index.next(), "gap in the log: {index} after {}", self.last.index);
        let before = LogPosition { index: LogIndex(index.0 - 1), term: self.term_before(index) };
        assert!(term >= before.term, "entry {index} of term {term} after one of term {}", before.term);
        // Before the base is looked at: this may cut the segment.
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

    /// Adds an opaque state to the group; the latest one is what `open` gives back.
    ///
    /// A crash may keep a prefix of an unsynced group: what must not be found without the other comes second.
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

    /// Makes the group durable with one write and one fdatasync. An empty group costs nothing.
    ///
    /// After an error the log is poisoned: every later call fails, and only opening it anew shows what was
    /// kept.
    pub fn sync(&mut self) -> Result<SyncResult> {
        self.guarded(Wal::flush)?;
        Ok(std::mem::take(&mut self.unreported))
    }

    /// Begins the log anew after `start` with `state`, as a follower does that got a snapshot instead of
    /// entries. Every entry kept so far and the unsynced group are discarded. Durable and atomic when it
    /// returns.
    ///
    /// What a crash leaves: before the new segment has its name the old log, as if nothing had been called;
    /// from then on the new one, with the old segments void until the next start removes them. There is no
    /// state in between.
    pub fn restart_at(&mut self, start: LogPosition, state: &[u8]) -> Result<()> {
        assert!(state.len() <= PAYLOAD_BYTES_MAX, "a state of {} bytes", state.len());
        self.guarded(|wal| {
            // What waits in the group is older than the snapshot that the log restarts from.
            wal.group.clear();
            wal.state = Some(state.to_vec());
            wal.begin(start, Descent::Origin)?;
            let sequence = wal.tail.sequence;
            // From here on the log is the new one, also if the old files remain.
            let mut catalogue = wal.reader.catalogue();
            let void: Vec<u64> = catalogue.segments().collect();
            *catalogue = Catalogue::new(sequence, start);
            drop(catalogue);
            (wal.start, wal.last) = (start.index, start);
            wal.discard(&void)
        })
    }

    /// Removes whole segments that hold only entries below `index`. Returns how many.
    ///
    /// The log keeps its place: indexes go on, and the position before the first entry kept stays known,
    /// which is what a follower's first missing entry is checked against.
    ///
    /// So the log may keep more than asked, up to a segment, and the newest segment always stays. Entries
    /// below `index` must be settled (applied, and covered by what a restart begins from): they can never be
    /// replaced again.
    pub fn release_before(&mut self, index: LogIndex) -> Result<usize> {
        assert!(index <= self.last.index.next(), "a release of entries that do not exist, before {index}");
        self.guarded(|wal| {
            let mut catalogue = wal.reader.catalogue();
            let sequences = catalogue.releasable(index);
            // Readers first: none may begin to read a file that is about to become another segment.
            catalogue.release(&sequences);
            wal.start = catalogue.start().index;
            drop(catalogue);
            wal.discard(&sequences)?;
            Ok(sequences.len())
        })
    }

    /// Ends the log in good order: writes out the group, and a mark that guards it against damage as all
    /// groups before it are guarded.
    pub fn close(mut self) -> Result<()> {
        self.guarded(|wal| {
            // Two groups: a mark in the same group as the last entries could be torn off together with them.
            wal.flush()?;
            wal.group.push(&wal.tail, Type::Mark, 0, LogPosition::default(), &[]);
            wal.flush()
        })
    }

    /// The last appended entry, synced or not; the start when there is none. [`Reader::last`] is the last
    /// synced one.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Bytes waiting for `sync`, frames included: for a caller who closes a group at some size.
    pub fn group_bytes(&self) -> usize {
        self.group.bytes.len()
    }

    /// A handle for reading synced entries.
    pub fn reader(&self) -> Reader<F> {
        self.reader.clone()
    }

    /// Term of the entry before `index`, synced or not.
    fn term_before(&self, index: LogIndex) -> Term {
        if index == self.last.index.next() {
            return self.last.term;
        }
        let before = LogIndex(index.0 - 1);
        let term = self.group.term(before).or_else(|| self.reader.term(before));
        term.expect("an entry between the start and the end has a term")
    }

    /// Writes the group after the tail and syncs it; cuts the segment if that filled it.
    ///
    /// The order is the promise: write, sync, and only then the catalogue, which is what readers believe, and
    /// the report, which is what the caller acts on.
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

    /// A conflict reaches below the tail: its entries go to a new segment, so that every segment holds only
    /// entries above its base, and the oldest one kept always says where the log starts.
    fn turn_back(&mut self, base: LogPosition) -> Result<()> {
        self.flush()?;
        self.cut(base)
    }

    /// Goes on in a new segment after `base`. The tail is synced at this point, so its end is a fact that the
    /// new header may state for ever. The base is the last entry or, at a conflict, an earlier one.
    fn cut(&mut self, base: LogPosition) -> Result<()> {
        assert!(self.group.is_empty(), "a cut would lose the group");
        self.begin(base, Descent::Continues { end: self.tail.end, crc: self.tail.crc })?;
        self.reader.catalogue().cut(self.tail.sequence, base);
        self.last = base;
        self.unreported.cuts += 1;
        Ok(())
    }

    /// Makes a new tail. The spare is used up even if this fails: the log is poisoned then.
    fn begin(&mut self, base: LogPosition, descent: Descent) -> Result<()> {
        let sequence = self.tail.sequence + 1;
        let (identity, salt, state) =
            (self.lineage.identity.as_slice(), self.lineage.salt, self.state.as_deref());
        let birth = Birth { sequence, base, descent, identity, salt, state };
        let spare = std::mem::replace(&mut self.spare, Spare::Absent);
        self.tail = segment::begin(&self.fs, &self.dir, &birth, spare, self.options.segment_bytes)?;
        Ok(())
    }

    /// Removes segments, in this order; keeps one of full size as the spare, whose blocks need not be
    /// allocated again.
    ///
    /// Not one that this process read in: read-ahead brings a file into the page cache in large folios, and
    /// then a small write to it is a large one on the disk.
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
            // One at a time: a power cut that undid some removals must not leave a gap among the segments.
            self.fs.sync_dir(&self.dir).attempt("sync directory", &self.dir)?;
        }
        Ok(())
    }

    fn is_sound(&self) -> bool {
        matches!(self.health, Health::Sound)
    }

    /// Runs a step that may fail in a call that cannot say so.
    fn attempt(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = step(self) {
            self.health = Health::Failing(error);
        }
    }

    /// Runs a step unless one failed before; a failure poisons the log.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        match std::mem::replace(&mut self.health, Health::Failed) {
            Health::Failing(error) => Err(error),
            Health::Failed => Err(Error::Poisoned),
            Health::Sound => {
                // Poisoned until proven sound: a step that panics leaves the log poisoned as well.
                let done = step(self)?;
                self.health = Health::Sound;
                Ok(done)
            }
        }
    }
}
