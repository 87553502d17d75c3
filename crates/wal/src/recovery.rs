//! How a log is read back: every byte verified, nothing dropped that was synced, nothing accepted that was
//! not written.
//!
//! ```text
//!  list ─▶ heads, newest to oldest, up to the origin ─▶ frames, oldest to newest ─▶ end of the newest
//! ```
//!
//! * A segment that has a successor ends exactly where the successor's header says, by offset and checksum:
//!   any deviation is corruption.
//! * In the newest segment the log ends at the first bytes that are not the next frame of the chain. They are
//!   a torn tail unless a frame after them belongs to a *later* group: such a frame was written when those
//!   bytes were synced already, so they were damaged since, and that is corruption. Frames of the *same*
//!   group may have reached the disk out of order before a power cut: the group was never reported as synced.
//! * One case cannot be distinguished: damage to the very last group, or the loss of the newest file. A
//!   successor's header or a mark guards that group from then on; `Wal::close` writes a mark, and `Wal::open`
//!   begins a new segment.
//!
//! Two examples, with groups in brackets and `x` for bytes that do not verify:
//!
//! ```text
//!   [A B] [C D x F] zeros           D is the last entry, F is dropped: the sync of C to F never returned
//!   [A B] [C x] [E] zeros           corruption at x: E was written after the sync of C and what followed it
//! ```
//!
//! What is asked of the *bytes* here, with an error, is what the writer asserts of *itself*: no gap, no term
//! that goes back, no entry at or below the base of its segment.
//!
//! Why no length, count or end is stored apart from the frames: it would have to be written and synced with
//! every group, in another place, and a crash between the two would leave a log that contradicts itself. The
//! frames prove their own order; only the very last of them have no successor that proves them.
//!
//! Recovery keeps no payload but the latest state; memory is one window of a walk. It writes nothing: what
//! must be written before a log can go on is [`crate::Wal::open`]'s affair, and an inspection runs the same
//! code.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::entries::Catalogue;
use crate::format::frame::{Frame, Header, Salt, Type};
use crate::format::segment::{self, Descent, PAGE_BYTES, SPARE, SegmentHead, Spare, Tail};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::types::IoContext;
use crate::{Error, File, Fs, LogIndex, LogPosition, Result};

/// Looks at a log whose segments are released while it is read. Each takes part of a second, and a segment of
/// 64 MiB is written between two releases.
const LOOKS_MAX: usize = 8;

/// What `open` found, for its caller to check against what it knows from elsewhere: whose log this is, and
/// whether it reaches as far as it must. Entries are read through [`crate::Wal::reader`]: recovery itself
/// keeps none in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The bytes given to `create`. To be compared before anything is believed: a directory may have been
    /// mixed up.
    pub identity: Vec<u8>,
    /// What makes this log another one than every other of its identity. None before the first segment that
    /// has one, in a log that was begun without.
    pub salt: Option<[u8; 16]>,
    /// The last synced state, if one was ever put.
    pub state: Option<Vec<u8>>,
    /// The position before the first entry kept.
    pub start: LogPosition,
    /// The last entry, or the start when there is none. If the commit index in the state is beyond it, synced
    /// entries were lost to damage that looked like a torn tail.
    pub last: LogPosition,
    /// Bytes of an unfinished group after the last whole frame; they were never reported as synced.
    pub torn_bytes: u64,
}

/// Everything found in a directory.
pub(crate) struct RecoveredFiles<F> {
    pub catalogue: Catalogue,
    pub identity: Vec<u8>,
    /// The salt of the log and the first segment that has it; none if all were written before logs had one.
    pub salt: Option<(Salt, u64)>,
    pub state: Option<Vec<u8>>,
    pub torn_bytes: u64,
    pub tail: Tail<F>,
    /// Where the last group of the tail begins: what a failed sync may have left in memory only.
    pub last_group: u64,
    /// Decides whether the newest segment can be written on, or must be sealed by a new one.
    pub ending: Ending,
    /// To be removed, in this order. Segments of which nothing counts, left by a restart or a release that
    /// was cut short.
    pub void: Vec<u64>,
    pub spare: Spare,
}

impl<F> RecoveredFiles<F> {
    /// What an open or an inspection of the log returns.
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

/// How the newest segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing was written after its head.
    Fresh,
    /// There are groups, or remains of one.
    Used,
}

/// Names in the directory of a log; what is neither a segment nor the spare belongs to others and is left
/// alone.
pub(crate) struct Listing {
    /// Ascending.
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

/// As `recover`, of a log that may be in use: segments that are released meanwhile are no damage.
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
            // At a conflict the log turned back below all that is left in front of this segment: those
            // segments were being released, one by one.
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

/// Reads the heads from the newest segment back to the origin or the oldest. Returns the sequences before
/// that, which are void, and the heads, oldest first.
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

/// One at a time: a log may have more segments than a process may open files.
fn open_segment<F: Fs>(fs: &F, dir: &Path, sequence: u64) -> Result<OpenedSegment<F::File>> {
    let path = segment::path(dir, sequence);
    let (file, bytes) = segment::open(fs, &path)?;
    let head = SegmentHead::read(&file, &path, sequence)?;
    if head.groups > bytes {
        return Err(corrupt(sequence, bytes, "the segment is cut short"));
    }
    Ok(OpenedSegment { head, file, path, bytes })
}

/// What the frames read so far add up to.
struct Replay {
    catalogue: Catalogue,
    state: Option<Vec<u8>>,
    segment: u64,
    base: LogPosition,
}

impl Replay {
    /// A log whose oldest segment is this one.
    fn new(head: &SegmentHead) -> Replay {
        let catalogue = Catalogue::new(head.sequence, head.base);
        Replay { catalogue, state: None, segment: head.sequence, base: head.base }
    }

    /// Takes in a frame that continues the chain. States of all segments pass by: the last one is the latest.
    /// The laws that the writer asserts are errors here.
    fn frame(&mut self, offset: u64, frame: &Frame<'_>) -> Result<()> {
        match frame.header.type_ {
            Type::Entry => self.entry(offset, frame.header.position)?,
            Type::State => self.state = Some(frame.payload.to_vec()),
            Type::Mark => {}
        }
        Ok(())
    }

    /// A frame can verify and still make no sense, if a program wrote nonsense. Then the log is refused as
    /// well.
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

    /// Goes on to the next segment.
    fn enter(&mut self, head: &SegmentHead) -> Result<()> {
        if self.catalogue.term(head.base.index) != Some(head.base.term) {
            return Err(corrupt(head.sequence, 0, "the base is not an entry of the log"));
        }
        self.catalogue.cut(head.sequence, head.base);
        (self.segment, self.base) = (head.sequence, head.base);
        Ok(())
    }
}

/// Why the frames of a segment stopped, and where.
pub(crate) struct Stop {
    pub offset: u64,
    pub reason: &'static str,
    /// Checksum of the last frame before `offset`.
    pub crc: u32,
    /// Where the group of that frame begins.
    pub group: u64,
}

/// Follows the chain of a segment up to `walk`'s limit, or to the first bytes that do not continue it. What
/// that means is for the caller: in a sealed segment it is damage, in the newest one perhaps the end.
fn follow<F: File>(
    replay: &mut Replay,
    walk: &mut FrameCursor<'_, F>,
    opened: &OpenedSegment<F>,
) -> Result<Stop> {
    follow_from(replay, walk, opened, segment::head_crc(&opened.head), PAGE_BYTES as u64)
}

/// As `follow`, after a frame with this checksum, whose group begins there.
fn follow_from<F: File>(
    replay: &mut Replay,
    walk: &mut FrameCursor<'_, F>,
    opened: &OpenedSegment<F>,
    mut crc: u32,
    mut group: u64,
) -> Result<Stop> {
    loop {
        let offset = walk.offset();
        let stop = |reason| Ok(Stop { offset, reason, crc, group });
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

/// Goes through a segment whose end is proven by the header of the next one.
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

/// Goes through the segment that was being written. Returns it as the tail to write on, how it ends, where
/// its last group begins, and the bytes of a torn tail.
fn replay_newest<F: File>(
    replay: &mut Replay,
    opened: OpenedSegment<F>,
) -> Result<(Tail<F>, Ending, u64, u64)> {
    let mut frames = walk(&opened.file, &opened.head, PAGE_BYTES as u64, opened.bytes);
    let mut stop = follow(replay, &mut frames, &opened)?;
    // The state at the head was synced before the segment got its name: there is no torn tail up to there.
    if stop.offset < opened.head.groups {
        return Err(corrupt(opened.head.sequence, stop.offset, stop.reason));
    }
    let torn_bytes = loop {
        match torn_bytes(&opened.file, &opened.head, &opened.path, opened.bytes, &stop) {
            Ok(torn_bytes) => break torn_bytes,
            Err(error) => {
                // An inspection may look while a member writes: what was not there yet is, by now.
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

/// Classifies the bytes after the last frame of the log: the length of a torn tail, or the error that they
/// are damage.
pub(crate) fn torn_bytes<F: File>(
    file: &F,
    head: &SegmentHead,
    path: &Path,
    file_bytes: u64,
    stop: &Stop,
) -> Result<u64> {
    let mut torn_end = stop.offset;
    let mut damaged = false;
    // A survivor of the same group proves nothing. One of a later group proves that these bytes were synced
    // before it was written.
    let mut judge = |offset: u64, header: &Header| {
        torn_end = offset + header.frame_bytes() as u64;
        // A whole frame that is not the next of the chain was written after other bytes than those found.
        damaged |= u64::from(header.group) > stop.offset || offset == stop.offset;
    };
    let mut rest = walk(file, head, stop.offset, file_bytes);
    rest.survivors(&mut judge).attempt("read log segment", path)?;
    if damaged && !base::mutant("lost-tail") {
        return Err(corrupt(head.sequence, stop.offset, stop.reason));
    }
    // The writer zeroes the rest of the page after a group: anything else there is part of a torn one. Also
    // of a whole page, if the group before ended with one.
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

/// The settings of a log.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// A segment is cut after the group that reaches this size. [`WalOptions::SEGMENT_BYTES`] but for tests.
    pub segment_bytes: u64,
    /// Random, and unknown to all who choose payloads: it makes the frames of the log unpredictable, so that
    /// no payload looks like a frame. Taken when the log is created, or opened for the first time since logs
    /// have a salt; from then on the log keeps its own, and this one is ignored.
    pub salt: [u8; 16],
}

impl WalOptions {
    /// Large enough that a cut (two syncs and a rename) is rare, small enough that the log gives back space
    /// soon.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// Offsets in a segment are 32 bits wide, and a group may begin just below the end.
    const SEGMENT_BYTES_MAX: u64 = 1 << 30;

    pub(crate) fn check(self) {
        assert!(self.segment_bytes > PAGE_BYTES as u64, "a segment needs room after its header");
        assert!(self.segment_bytes <= WalOptions::SEGMENT_BYTES_MAX, "a segment of more than 1 GiB");
    }
}

#[cfg(test)]
mod tests;
