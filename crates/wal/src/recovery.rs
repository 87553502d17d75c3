//! Recovery of a log: verifies every byte, and neither drops synced frames nor accepts unwritten ones.
//!
//! ```text
//!  list ─▶ heads, newest to oldest, up to the origin ─▶ frames, oldest to newest ─▶ end of the newest
//! ```
//!
//! * A segment with a successor must match the end offset and checksum in the successor's header. Any
//!   deviation is corruption.
//! * In the latest segment the log ends at the first bytes that do not continue the chain. They are a
//!   torn tail unless a later frame belongs to a *later* group: such a frame was written after those
//!   bytes had been synced, so they were corrupted since. Later frames of the *same* group may have
//!   reached the disk out of order before a power failure; that group was never reported as synced.
//! * Corruption of the very last group, and loss of the latest file, cannot be detected. A successor's
//!   header or a mark protects that group from then on: `Wal::close` writes a mark, and `Wal::open`
//!   starts a new segment.
//!
//! Two examples, with groups in brackets and `x` for bytes that do not verify:
//!
//! ```text
//!   [A B] [C D x F] zeros           D is the last entry, F is dropped: the sync of C to F never returned
//!   [A B] [C x] [E] zeros           corruption at x: E was written after the sync of C and x
//! ```
//!
//! Recovery returns errors for the invariants that the writer asserts: no gap, no decreasing term, no
//! entry at or below the base of its segment.
//!
//! Lengths, counts or ends are not stored separately from the frames: they would have to be written and
//! synced elsewhere with every group, and a crash between the two writes would leave a contradictory
//! log. The frames prove their own order; only the last ones have no successor to prove them.
//!
//! Recovery retains no payload except the latest state, and uses the memory of one cursor window. It
//! does not write, so that inspections can share it; [`crate::Wal::open`] does the writes needed to
//! continue the log.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::entries::Catalogue;
use crate::format::frame::{Frame, Header, Salt, Type};
use crate::format::segment::{self, Descent, PAGE_BYTES, SPARE, SegmentHead, Spare, Tail};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::types::IoContext;
use crate::{Error, File, Fs, LogIndex, LogPosition, Result};

/// Maximum attempts to read a log whose segments are concurrently released. An attempt takes a fraction
/// of a second, and 64 MiB are written between two releases.
const LOOKS_MAX: usize = 8;

/// Result of `open`, for the caller to check against other sources: whether it is the expected log, and
/// complete. Entries are not included; read them through [`crate::Wal::reader`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes given to `create`. Compare them before using the log: directories may have been mixed up.
    pub identity: Vec<u8>,
    /// Salt, which distinguishes this log from others with the same identity. `None` for a log created
    /// without a salt that has no segment with one yet.
    pub salt: Option<[u8; 16]>,
    /// Last synced state, if one was ever put.
    pub state: Option<Vec<u8>>,
    /// Position before the first retained entry.
    pub start: LogPosition,
    /// Last entry, or the start if there is none. If the commit index in the state is beyond it, synced
    /// entries were lost to corruption that resembled a torn tail.
    pub last: LogPosition,
    /// Size of an incomplete group after the last whole frame. It was never reported as synced.
    pub torn_bytes: u64,
}

pub(crate) struct RecoveredFiles<F> {
    pub catalogue: Catalogue,
    pub identity: Vec<u8>,
    /// Salt of the log and first segment with it; `None` if all segments predate salts.
    pub salt: Option<(Salt, u64)>,
    pub state: Option<Vec<u8>>,
    pub torn_bytes: u64,
    pub tail: Tail<F>,
    /// Start of the last group of the tail, which a failed sync may have left in memory only.
    pub last_group: u64,
    /// Decides whether to append to the latest segment or to seal it with a new one.
    pub ending: Ending,
    /// Obsolete segments to remove, in this order, left by an interrupted restart or release.
    pub void: Vec<u64>,
    pub spare: Spare,
}

impl<F> RecoveredFiles<F> {
    pub fn recovery(&self) -> Recovery {
        Recovery {
            identity: self.identity.clone(),
            salt: self.salt.map(|(salt, _)| salt),
            state: self.state.clone(),
            start: self.catalogue.start(),
            last: self.catalogue.last(),
            torn_bytes: self.torn_bytes,
        }
    }
}

/// State of the latest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Empty after its head.
    Fresh,
    /// Contains groups, or the remains of one.
    Used,
}

/// Files in the directory of a log. Other files are ignored.
pub(crate) struct Listing {
    pub segments: Vec<u64>,
    pub spare: Spare,
}

pub(crate) fn list<F: Fs>(fs: &F, dir: &Path) -> Result<Listing> {
    let names = match fs.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        listed => listed.attempt("list", dir)?,
    };
    let mut segments: Vec<u64> = names.iter().filter_map(|name| segment::parse_name(name)).collect();
    segments.sort_unstable();
    let spare = if names.iter().any(|name| name == SPARE) { Spare::Present } else { Spare::Absent };
    Ok(Listing { segments, spare })
}

/// Calls [`recover`] on a log that may be in use, and tolerates concurrent releases of segments.
pub(crate) fn recover_live<F: Fs>(fs: &F, dir: &Path) -> Result<RecoveredFiles<F::File>> {
    let mut oldest = list(fs, dir)?.segments.first().copied();
    for _ in 1..LOOKS_MAX {
        let found = recover(fs, dir);
        let now = list(fs, dir)?.segments.first().copied();
        if found.is_ok() || now == oldest {
            return found;
        }
        oldest = now;
    }
    recover(fs, dir)
}

pub(crate) fn recover<F: Fs>(fs: &F, dir: &Path) -> Result<RecoveredFiles<F::File>> {
    let listing = list(fs, dir)?;
    if listing.segments.is_empty() {
        return Err(Error::Missing { dir: dir.to_path_buf() });
    }
    let (mut void, heads) = read_heads(fs, dir, &listing.segments)?;
    let salt = heads.iter().find_map(|head| Some((head.salt?, head.sequence)));
    let mut replay = Replay::new(&heads[0]);
    for pair in heads.windows(2) {
        let (opened, next) = (open_segment(fs, dir, pair[0].sequence)?, &pair[1]);
        replay_sealed(&mut replay, &opened, next)?;
        if next.base.index < replay.catalogue.start().index {
            // At a conflict, the log went back below all remaining earlier segments: their release was in
            // progress.
            void.extend(replay.catalogue.segments());
            replay = Replay { state: replay.state, ..Replay::new(next) };
        } else {
            replay.enter(next)?;
        }
    }
    let newest = heads.last().expect("the listing was not empty");
    let newest = open_segment(fs, dir, newest.sequence)?;
    let identity = newest.head.identity.clone();
    let (tail, ending, last_group, torn_bytes) = replay_newest(&mut replay, newest)?;
    let Replay { catalogue, state, .. } = replay;
    let spare = listing.spare;
    Ok(RecoveredFiles { catalogue, identity, salt, state, torn_bytes, tail, last_group, ending, void, spare })
}

struct OpenedSegment<F> {
    head: SegmentHead,
    file: F,
    path: PathBuf,
    bytes: u64,
}

/// Reads the heads from the latest segment back to the origin or the oldest segment. Returns the void
/// sequences before it, and the heads, oldest first.
fn read_heads<F: Fs>(fs: &F, dir: &Path, sequences: &[u64]) -> Result<(Vec<u64>, Vec<SegmentHead>)> {
    let mut heads: Vec<SegmentHead> = Vec::new();
    for (at, &sequence) in sequences.iter().enumerate().rev() {
        let head = open_segment(fs, dir, sequence)?.head;
        if let Some(next) = heads.last() {
            if next.sequence != sequence + 1 {
                return Err(corrupt(sequence + 1, 0, "the segment is missing"));
            }
            if next.identity != head.identity || head.salt.is_some_and(|salt| next.salt != Some(salt)) {
                return Err(corrupt(sequence, 0, "the segment belongs to another log"));
            }
        }
        let descent = head.descent;
        heads.push(head);
        if descent == Descent::Origin {
            heads.reverse();
            return Ok((sequences[..at].to_vec(), heads));
        }
    }
    heads.reverse();
    Ok((Vec::new(), heads))
}

/// Opens one segment. Segments are opened one at a time because a log may have more than the limit of
/// open files.
fn open_segment<F: Fs>(fs: &F, dir: &Path, sequence: u64) -> Result<OpenedSegment<F::File>> {
    let path = segment::path(dir, sequence);
    let (file, bytes) = segment::open(fs, &path)?;
    let head = SegmentHead::read(&file, &path, sequence)?;
    if head.groups > bytes {
        return Err(corrupt(sequence, bytes, "the segment is cut short"));
    }
    Ok(OpenedSegment { head, file, path, bytes })
}

struct Replay {
    catalogue: Catalogue,
    state: Option<Vec<u8>>,
    segment: u64,
    base: LogPosition,
}

impl Replay {
    /// Creates the state for a log that starts in this segment.
    fn new(head: &SegmentHead) -> Replay {
        let catalogue = Catalogue::new(head.sequence, head.base);
        Replay { catalogue, state: None, segment: head.sequence, base: head.base }
    }

    /// Applies a frame that continues the chain. The last state is current. Violations of the writer's
    /// invariants are errors here.
    fn frame(&mut self, offset: u64, frame: &Frame<'_>) -> Result<()> {
        match frame.header.type_ {
            Type::Entry => self.entry(offset, frame.header.position)?,
            Type::State => self.state = Some(frame.payload.to_vec()),
            Type::Mark => {}
        }
        Ok(())
    }

    /// Applies an entry. A valid frame can still be inconsistent if a program wrote it so; the log is then
    /// rejected.
    fn entry(&mut self, offset: u64, position: LogPosition) -> Result<()> {
        let breach = |reason| Err(corrupt(self.segment, offset, reason));
        if position.index <= self.base.index {
            return breach("an entry below the base of its segment");
        }
        if position.index > self.catalogue.last().index.next() {
            return breach("gap in the log");
        }
        let before = LogIndex(position.index.0 - 1);
        if self.catalogue.term(before).is_none_or(|term| term > position.term) {
            return breach("the term goes back");
        }
        self.catalogue.entry(position, offset);
        Ok(())
    }

    fn enter(&mut self, head: &SegmentHead) -> Result<()> {
        if self.catalogue.term(head.base.index) != Some(head.base.term) {
            return Err(corrupt(head.sequence, 0, "the base is not an entry of the log"));
        }
        self.catalogue.cut(head.sequence, head.base);
        (self.segment, self.base) = (head.sequence, head.base);
        Ok(())
    }
}

/// Position and reason at which the frames of a segment stopped.
pub(crate) struct StopPoint {
    pub offset: u64,
    pub reason: &'static str,
    pub crc: u32,
    pub group: u64,
}

/// Follows the chain of a segment up to `walk`'s limit, or to the first bytes that do not continue it.
/// The caller interprets the stop: in a sealed segment it is corruption, in the latest one it may be
/// the end of the log.
fn follow<F: File>(
    replay: &mut Replay,
    walk: &mut FrameCursor<'_, F>,
    opened: &OpenedSegment<F>,
) -> Result<StopPoint> {
    follow_from(replay, walk, opened, segment::head_crc(&opened.head), PAGE_BYTES as u64)
}

/// Continues [`follow`] after a frame with checksum `crc` in the group at `group`.
fn follow_from<F: File>(
    replay: &mut Replay,
    walk: &mut FrameCursor<'_, F>,
    opened: &OpenedSegment<F>,
    mut crc: u32,
    mut group: u64,
) -> Result<StopPoint> {
    loop {
        let offset = walk.offset();
        let stop = |reason| Ok(StopPoint { offset, reason, crc, group });
        let header = match walk.frame().attempt("read log segment", &opened.path)? {
            Err(flaw) => return stop(flaw),
            Ok(frame) if frame.header.previous != crc && !base::mutant("unchained-frames") => {
                return stop("the chain of frames is broken");
            }
            Ok(frame) if u64::from(frame.header.group) > offset => return stop("a frame before its group"),
            Ok(frame) => {
                replay.frame(offset, &frame)?;
                crc = frame.crc;
                frame.header
            }
        };
        walk.pass(&header);
        group = u64::from(header.group);
    }
}

/// Replays a segment whose end is recorded in the header of the next one.
fn replay_sealed<F: File>(replay: &mut Replay, opened: &OpenedSegment<F>, next: &SegmentHead) -> Result<()> {
    let Descent::Continues { end, crc } = next.descent else {
        unreachable!("heads are read back to an origin, which is the first of them");
    };
    if end < PAGE_BYTES as u64 || end > opened.bytes {
        return Err(corrupt(opened.head.sequence, opened.bytes, "the segment is cut short"));
    }
    let mut walk = walk(&opened.file, &opened.head, PAGE_BYTES as u64, end);
    let stop = follow(replay, &mut walk, opened)?;
    if stop.offset < end {
        return Err(corrupt(opened.head.sequence, stop.offset, stop.reason));
    }
    if stop.crc != crc {
        return Err(corrupt(opened.head.sequence, end, "the successor continues another segment"));
    }
    Ok(())
}

/// Replays the latest segment. Returns the tail to append to, its state, the offset of its last group,
/// and the size of a torn tail.
fn replay_newest<F: File>(
    replay: &mut Replay,
    opened: OpenedSegment<F>,
) -> Result<(Tail<F>, Ending, u64, u64)> {
    let mut frames = walk(&opened.file, &opened.head, PAGE_BYTES as u64, opened.bytes);
    let mut stop = follow(replay, &mut frames, &opened)?;
    // The state at the head was synced before the segment got its name, so it cannot be torn.
    if stop.offset < opened.head.groups {
        return Err(corrupt(opened.head.sequence, stop.offset, stop.reason));
    }
    let torn_bytes = loop {
        match torn_bytes(&opened.file, &opened.head, &opened.path, opened.bytes, &stop) {
            Ok(torn_bytes) => break torn_bytes,
            Err(error) => {
                // During an inspection, the member may have written these bytes in the meantime.
                let mut rest = walk(&opened.file, &opened.head, stop.offset, opened.bytes);
                let later = follow_from(replay, &mut rest, &opened, stop.crc, stop.group)?;
                if later.offset == stop.offset {
                    return Err(error);
                }
                stop = later;
            }
        }
    };
    let fresh = stop.offset == opened.head.groups && torn_bytes == 0;
    let ending = if fresh { Ending::Fresh } else { Ending::Used };
    let OpenedSegment { head, file, path, bytes } = opened;
    let seed = head.seed();
    let (sequence, base) = (head.sequence, head.base);
    let tail = Tail { file, path, sequence, base, seed, end: stop.offset, crc: stop.crc, written: bytes };
    Ok((tail, ending, stop.group, torn_bytes))
}

/// Classifies the bytes after the last frame of the log. Returns the length of a torn tail, or an error
/// if they are corrupt.
pub(crate) fn torn_bytes<F: File>(
    file: &F,
    head: &SegmentHead,
    path: &Path,
    file_bytes: u64,
    stop: &StopPoint,
) -> Result<u64> {
    let mut torn_end = stop.offset;
    let mut damaged = false;
    // A later frame of the same group is inconclusive. One of a later group proves that these bytes were
    // synced before it was written.
    let mut judge = |offset: u64, header: &Header| {
        torn_end = offset + header.frame_bytes() as u64;
        // A whole frame that does not continue the chain was written after other bytes than those found.
        damaged |= u64::from(header.group) > stop.offset || offset == stop.offset;
    };
    let mut rest = walk(file, head, stop.offset, file_bytes);
    rest.survivors(&mut judge).attempt("read log segment", path)?;
    if damaged && !base::mutant("lost-tail") {
        return Err(corrupt(head.sequence, stop.offset, stop.reason));
    }
    // The writer zeroes the rest of the page after a group, or the next page if the group filled its page.
    // Other bytes there belong to a torn group.
    let mut page = walk(file, head, stop.offset, segment::page_end(stop.offset).min(file_bytes));
    let bytes = page.peek(PAGE_BYTES).attempt("read log segment", path)?;
    let dirty = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1);
    Ok((torn_end - stop.offset).max(dirty))
}

fn walk<'f, F: File>(file: &'f F, head: &SegmentHead, from: u64, to: u64) -> FrameCursor<'f, F> {
    FrameCursor::new(file, head.seed(), from, to, CHUNK_BYTES)
}

fn corrupt(segment: u64, offset: u64, reason: &'static str) -> Error {
    Error::Corrupt { segment, offset, reason }
}

/// Options of a log.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// Size at which a segment is full. [`WalOptions::SEGMENT_BYTES`] except in tests.
    pub segment_bytes: u64,
    /// Random bytes, unknown to anyone who chooses payloads. They make the frames unpredictable, so that no
    /// payload can pass for a frame. Used when a log is created, or first opened if it predates salts;
    /// afterwards the log retains its salt and ignores this one.
    pub salt: [u8; 16],
}

impl WalOptions {
    /// Default size: large enough to make new segments (two syncs and a rename) rare, small enough to
    /// release space soon.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// Maximum size. Offsets in a segment are 32 bits wide, and a group may start just below the end.
    const SEGMENT_BYTES_MAX: u64 = 1 << 30;

    pub(crate) fn check(self) {
        assert!(self.segment_bytes > PAGE_BYTES as u64, "a segment needs room after its header");
        assert!(self.segment_bytes <= WalOptions::SEGMENT_BYTES_MAX, "a segment of more than 1 GiB");
    }
}

#[cfg(test)]
mod tests;
