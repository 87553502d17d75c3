//! A look at a log as it lies on the disk, damaged or not. Writes nothing.
//!
//! ```text
//!   list ─▶ heads ─▶ per segment: Segment, then Frame · Frame · Damage · Frame … Torn ─▶ Inspection
//! ```
//!
//! * Every frame that verifies is shown, in the order of the files, also after damage that
//!   [`crate::Wal::open`] would refuse. The bytes between are shown as damage.
//! * Each frame verifies by itself; whether it follows the one before is shown separately. Entries are shown
//!   as written: of two with one index the later one counts.
//! * Disk errors are findings as well: the rest of the log may be readable.
//! * The log may be in use. Bytes that do not verify are read again before they are damage, and a segment
//!   that is released meanwhile is none.
//! * Memory: one window of a walk.
//!
//! What an operator sees, and what it means:
//!
//! | finding | means |
//! |---|---|
//! | frame, not chained | a frame before it is missing: it was synced after other bytes |
//! | damage with frames after it | bytes that were synced have changed since: the log does not open |
//! | damage at the end of a sealed segment | the same: its successor says where it ended |
//! | torn | a group that a crash interrupted; the log opens and drops it |
//! | a void segment | left by an interrupted restart of the log; the next start removes it |
//!
//! The verdict on the whole comes from the recovery itself, so that an inspection never says other than a
//! start.

use std::path::{Path, PathBuf};

use crate::format::frame::{self, Type};
use crate::format::segment::{self, Descent, Lineage, PAGE_BYTES, SegmentHead};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::recovery::{self, Stop};
use crate::{Error, File, Fs, LogPosition, Recovery, Result};

/// One thing that an inspection comes across.
#[derive(Clone, Copy, Debug)]
pub enum Finding<'a> {
    /// A file begins; what follows up to the next one lies in it.
    Segment(SegmentFound<'a>),
    Frame(FrameFound<'a>),
    /// Bytes that should be frames and are none.
    Damage {
        file: &'a Path,
        offset: u64,
        bytes: u64,
        reason: &'a str,
    },
    /// The remains of a group that was never reported as synced: not part of the log, and no damage.
    Torn {
        file: &'a Path,
        offset: u64,
        bytes: u64,
    },
}

/// A segment, as its head describes it.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFound<'a> {
    pub file: &'a Path,
    pub sequence: u64,
    /// Length of the file, which reaches further than its frames.
    pub bytes: u64,
    /// The position before the first entry; None if the head is damaged.
    pub base: Option<LogPosition>,
    /// Whose log this is; empty if the head is damaged.
    pub identity: &'a [u8],
    /// The log begins anew here.
    pub is_origin: bool,
    /// It lies before an origin: nothing in it counts, and the next start removes it.
    pub is_void: bool,
}

/// A frame whose checksums agree.
#[derive(Clone, Copy, Debug)]
pub struct FrameFound<'a> {
    pub file: &'a Path,
    pub offset: u64,
    /// Header and padding included.
    pub bytes: u64,
    /// Where its group begins in this file: what one sync made durable.
    pub group: u64,
    pub content: FrameContent<'a>,
    /// Whether it names the frame before it by its checksum; if not, one is missing in between.
    pub is_chained: bool,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContent<'a> {
    Entry {
        position: LogPosition,
        kind: u8,
        payload: &'a [u8],
    },
    /// The caller's state; the last one counts.
    State(&'a [u8]),
    /// Says only that everything before it was synced.
    Mark,
}

/// The whole of it.
#[derive(Debug)]
pub struct Inspection {
    pub segments: u64,
    /// Frames that verify, those of void segments included.
    pub frames: u64,
    /// Damage that was shown; a log that opens has none but in void segments.
    pub damages: u64,
    /// What [`crate::Wal::open`] would say.
    pub opens: Result<Recovery>,
}

/// Shows everything in the log of `dir` to `visit`, in the order of files and offsets.
///
/// Fails only if there is no log, or if the directory itself cannot be listed. [`crate::ReadOnlyFs`] sees to
/// it that nothing is written; the end of a log that is being written to may look torn.
pub fn inspect<F: Fs>(fs: &F, dir: &Path, visit: &mut dyn FnMut(Finding<'_>)) -> Result<Inspection> {
    let sequences = recovery::list(fs, dir)?.segments;
    if sequences.is_empty() {
        return Err(Error::Missing { dir: dir.to_path_buf() });
    }
    let opens = recovery::recover_live(fs, dir).map(|found| found.recovery());
    let segments: Vec<Segment<F::File>> =
        sequences.iter().map(|sequence| Segment::open(fs, dir, *sequence)).collect();
    let origin = segments.iter().rposition(|segment| segment.is_origin()).unwrap_or(0);
    // A segment with a damaged head still has frames; their seed follows from what all segments share.
    let heads = || segments.iter().filter_map(|segment| segment.head.as_ref().ok());
    // A damaged head does not say whether its segment is salted. It is, unless a later one is not.
    let unsalted = heads().rfind(|head| head.salt.is_none()).map_or(0, |head| head.sequence + 1);
    let salt = heads().find_map(|head| Some((head.salt?, unsalted)));
    let lineage = heads().next_back().map(|head| Lineage::of(head.identity.clone(), salt));
    let oldest = || Some(*recovery::list(fs, dir).ok()?.segments.first()?);
    let is_released = |sequence| oldest().is_some_and(|oldest| oldest > sequence);
    let inspection = Inspection { segments: 0, frames: 0, damages: 0, opens };
    let mut look = LogInspection { visit, is_released: &is_released, lineage, inspection };
    for (at, segment) in segments.iter().enumerate() {
        if at > 0 && segment.sequence != segments[at - 1].sequence + 1 && at > origin {
            let missing = segment::path(dir, segment.sequence - 1);
            look.damage(segment.sequence - 1, &missing, 0, 0, "the segment is missing");
        }
        look.segment(segment, segments.get(at + 1), at < origin);
    }
    Ok(look.inspection)
}

/// A file, as far as it can be opened.
struct Segment<F> {
    sequence: u64,
    path: PathBuf,
    bytes: u64,
    file: Option<F>,
    head: std::result::Result<SegmentHead, String>,
}

impl<F: File> Segment<F> {
    fn open<S: Fs<File = F>>(fs: &S, dir: &Path, sequence: u64) -> Segment<F> {
        let path = segment::path(dir, sequence);
        let (file, bytes, head) = match segment::open(fs, &path) {
            Ok((file, bytes)) => {
                let head = SegmentHead::read(&file, &path, sequence).map_err(|error| reason(&error));
                (Some(file), bytes, head)
            }
            Err(error) => (None, 0, Err(reason(&error))),
        };
        Segment { sequence, path, bytes, file, head }
    }

    fn is_origin(&self) -> bool {
        self.head.as_ref().is_ok_and(|head| head.descent == Descent::Origin)
    }

    /// Where the successor says that this segment ends.
    fn sealed_at(&self, next: Option<&Segment<F>>) -> Option<u64> {
        let next = next.filter(|next| next.sequence == self.sequence + 1)?.head.as_ref().ok()?;
        match next.descent {
            Descent::Continues { end, .. } => Some(end),
            Descent::Origin => None,
        }
    }
}

/// In short: the file is named next to it.
fn reason(error: &Error) -> String {
    match error {
        Error::Corrupt { reason, .. } => (*reason).to_string(),
        Error::Io { attempt, source, .. } => format!("{attempt}: {source}"),
        other => other.to_string(),
    }
}

/// An inspection under way.
struct LogInspection<'v> {
    visit: &'v mut dyn FnMut(Finding<'_>),
    /// Whether the log begins after this segment by now.
    is_released: &'v dyn Fn(u64) -> bool,
    lineage: Option<Lineage>,
    inspection: Inspection,
}

impl LogInspection<'_> {
    /// Counts what it shows: a log without damage opens, and one that opens has none that counts.
    fn damage(&mut self, sequence: u64, file: &Path, offset: u64, bytes: u64, reason: &str) {
        if (self.is_released)(sequence) {
            return;
        }
        self.inspection.damages += 1;
        (self.visit)(Finding::Damage { file, offset, bytes, reason });
    }

    fn segment<F: File>(&mut self, segment: &Segment<F>, next: Option<&Segment<F>>, is_void: bool) {
        self.inspection.segments += 1;
        let head = segment.head.as_ref().ok();
        (self.visit)(Finding::Segment(SegmentFound {
            file: &segment.path,
            sequence: segment.sequence,
            bytes: segment.bytes,
            base: head.map(|head| head.base),
            identity: head.map_or(&[], |head| &head.identity),
            is_origin: segment.is_origin(),
            is_void,
        }));
        if let Err(reason) = &segment.head {
            self.damage(segment.sequence, &segment.path, 0, (PAGE_BYTES as u64).min(segment.bytes), reason);
        }
        let of_lineage = || self.lineage.as_ref().map(|lineage| lineage.seed(segment.sequence));
        let seed = head.map(SegmentHead::seed).or_else(of_lineage);
        let (Some(file), Some(seed)) = (&segment.file, seed) else { return };
        let sealed_at = segment.sealed_at(next);
        // After a seal there are remains of a torn tail, or of the file's previous use: neither is part of
        // the log.
        let mut limit = segment.bytes;
        if let Some(end) = sealed_at {
            if end > limit {
                self.damage(segment.sequence, &segment.path, limit, end - limit, "the segment is cut short");
            }
            limit = limit.min(end);
        }
        let begin = (PAGE_BYTES as u64).min(limit);
        assert!(limit <= segment.bytes, "nothing is searched after the file's end");
        let mut walk = FrameCursor::new(file, seed, begin, limit, CHUNK_BYTES);
        if let Err(error) = self.frames(segment, &mut walk, sealed_at) {
            let offset = walk.offset();
            self.damage(
                segment.sequence,
                &segment.path,
                offset,
                limit - offset,
                &format!("read log segment: {error}"),
            );
        }
    }

    /// Shows the frames of a segment and what lies between them.
    fn frames<F: File>(
        &mut self,
        segment: &Segment<F>,
        walk: &mut FrameCursor<'_, F>,
        sealed_at: Option<u64>,
    ) -> std::io::Result<()> {
        let mut crc = segment.head.as_ref().ok().map(segment::head_crc);
        let mut group = PAGE_BYTES as u64;
        loop {
            let offset = walk.offset();
            if sealed_at.is_some_and(|end| offset >= end) {
                return Ok(());
            }
            let flaw = match walk.frame()? {
                Ok(frame) => {
                    let is_chained = crc.is_none_or(|crc| crc == frame.header.previous);
                    self.show(&segment.path, offset, &frame, is_chained);
                    (crc, group) = (Some(frame.crc), u64::from(frame.header.group));
                    let header = frame.header;
                    walk.pass(&header);
                    continue;
                }
                Err(flaw) => flaw,
            };
            let stop = Stop { offset, reason: flaw, crc: crc.unwrap_or_default(), group };
            if sealed_at.is_none() && self.is_the_end(segment, &stop) {
                return Ok(());
            }
            // The member may have written it since.
            if walk.frame_again()?.is_ok() {
                continue;
            }
            // What follows in a file that was released meanwhile is of another segment.
            if (self.is_released)(segment.sequence) {
                return Ok(());
            }
            let survivor = walk.survivor()?;
            let end = if survivor.is_some() { walk.offset() } else { sealed_at.unwrap_or(offset) };
            assert!(survivor.is_none() || end > offset, "a survivor where nothing verified");
            self.damage(segment.sequence, &segment.path, offset, end.saturating_sub(offset), flaw);
            if survivor.is_none() {
                return Ok(());
            }
        }
    }

    fn show(&mut self, file: &Path, offset: u64, frame: &frame::Frame<'_>, is_chained: bool) {
        self.inspection.frames += 1;
        let header = frame.header;
        assert!(offset >= PAGE_BYTES as u64, "a frame within the header page");
        let content = match header.type_ {
            Type::Entry => {
                FrameContent::Entry { position: header.position, kind: header.kind, payload: frame.payload }
            }
            Type::State => FrameContent::State(frame.payload),
            Type::Mark => FrameContent::Mark,
        };
        let (bytes, group) = (header.frame_bytes() as u64, u64::from(header.group));
        (self.visit)(Finding::Frame(FrameFound { file, offset, bytes, group, content, is_chained }));
    }

    /// Whether a segment without a successor ends here, by the recovery's own judgement; shows what is torn
    /// there.
    fn is_the_end<F: File>(&mut self, segment: &Segment<F>, stop: &Stop) -> bool {
        let (Some(file), Ok(head)) = (&segment.file, &segment.head) else { return false };
        if stop.offset < head.groups {
            return false;
        }
        match recovery::torn_bytes(file, head, &segment.path, segment.bytes, stop) {
            Ok(0) => true,
            Ok(bytes) => {
                (self.visit)(Finding::Torn { file: &segment.path, offset: stop.offset, bytes });
                true
            }
            Err(_) => false,
        }
    }
}
