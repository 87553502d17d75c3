//! Read-only inspection of a log on disk, corrupt or not.
//!
//! ```text
//!   list ─▶ heads ─▶ per segment: Segment, then Frame · Frame · Damage · Frame … Torn ─▶ Inspection
//! ```
//!
//! * Every frame that verifies is reported in file order, even after corruption that
//!   [`crate::Wal::open`] would reject. The bytes in between are reported as damage.
//! * Frames are verified individually; a broken chain is reported separately. Entries are reported as
//!   written: if an index occurs twice, the later one is valid.
//! * I/O errors are findings as well: the rest of the log may be readable.
//! * The log may be in use. Bytes that do not verify are read again before they are reported as damage,
//!   and a segment released during the inspection is not damage.
//! * Memory: the window of one cursor.
//!
//! Findings for operators:
//!
//! | finding | meaning |
//! |---|---|
//! | frame, not chained | a frame before it is missing: other bytes preceded it when it was written |
//! | damage with frames after it | synced bytes have changed since: the log does not open |
//! | damage at the end of a sealed segment | the same: the successor records the segment's end |
//! | torn | a group interrupted by a crash; the log opens and drops it |
//! | a void segment | left by an interrupted restart of the log; the next start removes it |
//!
//! The overall result comes from recovery itself, so an inspection always agrees with a start.

use std::path::{Path, PathBuf};

use crate::format::frame::{self, Type};
use crate::format::segment::{self, Descent, LogProperties, PAGE_BYTES, SegmentHead};
use crate::format::walk::{CHUNK_BYTES, FrameCursor};
use crate::recovery::{self, StopPoint};
use crate::{Error, File, Fs, LogPosition, Recovery, Result};

/// A finding of an inspection.
#[derive(Clone, Copy, Debug)]
pub enum Finding<'a> {
    /// Start of a file. Subsequent findings up to the next `Segment` belong to it.
    Segment(SegmentFound<'a>),
    Frame(FrameFound<'a>),
    /// Bytes that should be frames but do not verify.
    Damage {
        file: &'a Path,
        offset: u64,
        bytes: u64,
        reason: &'a str,
    },
    /// Remains of a group that was never reported as synced: neither part of the log nor corruption.
    Torn {
        file: &'a Path,
        offset: u64,
        bytes: u64,
    },
}

/// A segment, as described by its header.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFound<'a> {
    pub file: &'a Path,
    pub sequence: u64,
    /// Length of the file, which exceeds its frames.
    pub bytes: u64,
    /// Position before the first entry; `None` if the header is corrupt.
    pub base: Option<LogPosition>,
    /// Identity of the log; empty if the header is corrupt.
    pub identity: &'a [u8],
    /// True if the log starts in this segment.
    pub is_origin: bool,
    /// True if the segment precedes an origin: its contents are ignored, and the next start removes it.
    pub is_void: bool,
}

/// A frame with valid checksums.
#[derive(Clone, Copy, Debug)]
pub struct FrameFound<'a> {
    pub file: &'a Path,
    pub offset: u64,
    /// Size including header and padding.
    pub bytes: u64,
    /// Offset of its group in this file. A group is made durable by one sync.
    pub group: u64,
    pub content: FrameContent<'a>,
    /// True if the frame refers to the preceding frame by its checksum. Otherwise a frame in between is
    /// missing.
    pub is_chained: bool,
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContent<'a> {
    Entry {
        position: LogPosition,
        kind: u8,
        payload: &'a [u8],
    },
    /// State of the caller; the last one is current.
    State(&'a [u8]),
    /// Proves that all preceding frames were synced; has no content.
    Mark,
}

/// Summary of an inspection.
#[derive(Debug)]
pub struct Inspection {
    pub segments: u64,
    /// Number of valid frames, including those in void segments.
    pub frames: u64,
    /// Number of `Damage` findings. A log that opens has damage in void segments only.
    pub damages: u64,
    /// Result that [`crate::Wal::open`] would return.
    pub opens: Result<Recovery>,
}

/// Reports the contents of the log in `dir` to `visit`, in the order of files and offsets.
///
/// Fails only if there is no log, or if the directory itself cannot be listed. Use
/// [`crate::ReadOnlyFs`] to prevent writes. The end of a log in use may look torn.
pub fn inspect<F: Fs>(fs: &F, dir: &Path, visit: &mut dyn FnMut(Finding<'_>)) -> Result<Inspection> {
    let sequences = recovery::list(fs, dir)?.segments;
    if sequences.is_empty() {
        return Err(Error::Missing { dir: dir.to_path_buf() });
    }
    let opens = recovery::recover_live(fs, dir).map(|found| found.recovery());
    let segments: Vec<InspectedSegment<F::File>> =
        sequences.iter().map(|sequence| InspectedSegment::open(fs, dir, *sequence)).collect();
    let origin = segments.iter().rposition(|segment| segment.is_origin()).unwrap_or(0);
    // A segment with a corrupt header still has frames; their seed follows from the other segments.
    let heads = || segments.iter().filter_map(|segment| segment.head.as_ref().ok());
    // A segment with a corrupt header is assumed to be salted, unless a later one is not.
    let unsalted = heads().rfind(|head| head.salt.is_none()).map_or(0, |head| head.sequence + 1);
    let salt = heads().find_map(|head| Some((head.salt?, unsalted)));
    let lineage = heads().next_back().map(|head| LogProperties::of(head.identity.clone(), salt));
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

/// A segment, possibly with an unreadable file or header.
struct InspectedSegment<F> {
    sequence: u64,
    path: PathBuf,
    bytes: u64,
    file: Option<F>,
    head: std::result::Result<SegmentHead, String>,
}

impl<F: File> InspectedSegment<F> {
    fn open<S: Fs<File = F>>(fs: &S, dir: &Path, sequence: u64) -> InspectedSegment<F> {
        let path = segment::path(dir, sequence);
        let (file, bytes, head) = match segment::open(fs, &path) {
            Ok((file, bytes)) => {
                let head = SegmentHead::read(&file, &path, sequence).map_err(|error| reason(&error));
                (Some(file), bytes, head)
            }
            Err(error) => (None, 0, Err(reason(&error))),
        };
        InspectedSegment { sequence, path, bytes, file, head }
    }

    fn is_origin(&self) -> bool {
        self.head.as_ref().is_ok_and(|head| head.descent == Descent::Origin)
    }

    /// Returns the end of this segment according to its successor.
    fn sealed_at(&self, next: Option<&InspectedSegment<F>>) -> Option<u64> {
        let next = next.filter(|next| next.sequence == self.sequence + 1)?.head.as_ref().ok()?;
        match next.descent {
            Descent::Continues { end, .. } => Some(end),
            Descent::Origin => None,
        }
    }
}

/// Formats an error without the file name, which is reported separately.
fn reason(error: &Error) -> String {
    match error {
        Error::Corrupt { reason, .. } => (*reason).to_string(),
        Error::Io { attempt, source, .. } => format!("{attempt}: {source}"),
        other => other.to_string(),
    }
}

struct LogInspection<'v> {
    visit: &'v mut dyn FnMut(Finding<'_>),
    /// Reports whether the segment has been released.
    is_released: &'v dyn Fn(u64) -> bool,
    lineage: Option<LogProperties>,
    inspection: Inspection,
}

impl LogInspection<'_> {
    /// Reports and counts damage, unless the segment has been released.
    fn damage(&mut self, sequence: u64, file: &Path, offset: u64, bytes: u64, reason: &str) {
        if (self.is_released)(sequence) {
            return;
        }
        self.inspection.damages += 1;
        (self.visit)(Finding::Damage { file, offset, bytes, reason });
    }

    fn segment<F: File>(
        &mut self,
        segment: &InspectedSegment<F>,
        next: Option<&InspectedSegment<F>>,
        is_void: bool,
    ) {
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
        // Bytes after the recorded end are remains of a torn tail or of the file's previous use, not part of
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

    /// Reports the frames of a segment and the damage between them.
    fn frames<F: File>(
        &mut self,
        segment: &InspectedSegment<F>,
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
            let stop = StopPoint { offset, reason: flaw, crc: crc.unwrap_or_default(), group };
            if sealed_at.is_none() && self.is_the_end(segment, &stop) {
                return Ok(());
            }
            // The member may have written it in the meantime.
            if walk.frame_again()?.is_ok() {
                continue;
            }
            // If the file was released, the following bytes belong to another segment.
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

    /// Reports whether a segment without a successor ends at `stop`, using recovery's classification, and
    /// reports torn bytes there.
    fn is_the_end<F: File>(&mut self, segment: &InspectedSegment<F>, stop: &StopPoint) -> bool {
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
