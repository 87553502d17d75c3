//! Sparse index of the synced entries, and the buffer of unsynced frames.
//!
//! ```text
//!  points    1 ───── 210 ───── 400 ─ 433 ─────▶      one per 64 KiB of log, and at each conflict
//!  runs      term 3 ──── term 4 ─────────────▶       one per term
//!  segments  base 0 ─────────── base 399 ────▶
//! ```
//!
//! # The catalogue
//!
//! * Points, runs and segments are each in index order and cover valid entries only. Entries replaced
//!   at a conflict are removed here, though their bytes remain in a segment.
//! * From a point on, a segment holds consecutive indexes at least up to the index before the next
//!   point. A reader never reads past that index, so it does not see replaced entries: they follow the
//!   last valid one.
//! * A full segment has about 1,000 points, so memory does not grow with the number of entries.
//!
//! Lookups of an entry's location or term are binary searches. Appending pushes a point once per 64
//! KiB; a conflict pops from the back, a release from the front.
//!
//! # The group
//!
//! The group buffer holds the frames of the next sync, encoded for their final location.
//!
//! * Each payload is copied and checksummed once. A buffer that has grown does not allocate.
//! * A frame's location is fixed when it is added: the log switches segments between groups, never
//!   within one.
//!
//! A conflict within a group does not remove frames: the replaced frames are written too, and replay
//! arrives at the same result. Conflicts are rare, and append-only groups keep the chain simple.
//!
//! The group tracks the mean group size, which determines how files grow.

use std::collections::VecDeque;

use crate::format::frame::{self, Header, Type};
use crate::format::segment::{AHEAD_BYTES, PAGE_BYTES, Tail};
use crate::{Error, LogIndex, LogPosition, Result, Term};

/// Maximum distance between points, and thus of the bytes that a lagging follower reads unnecessarily.
const POINT_SPACING_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramePlace {
    pub segment: u64,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    index: LogIndex,
    place: FramePlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentSpan {
    sequence: u64,
    /// Position before the first entry of the segment.
    base: LogPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Index of the entry at `place`.
    pub first: LogIndex,
    pub place: FramePlace,
    /// Last entry to read here, in the same segment.
    pub last: LogIndex,
}

#[derive(Debug)]
pub(crate) struct Catalogue {
    /// Position before the first retained entry: the base of the oldest segment.
    start: LogPosition,
    last: LogPosition,
    /// Oldest first, never empty. Bases decrease where a conflict crossed a segment boundary.
    segments: VecDeque<SegmentSpan>,
    points: VecDeque<Point>,
    /// First position of each run of entries with the same term. The first run starts at `start`.
    runs: VecDeque<LogPosition>,
    /// The next entry gets a point at any distance from the previous one.
    point_due: bool,
}

impl Catalogue {
    /// Creates the catalogue of an empty log that starts in segment `sequence` after `start`.
    pub fn new(sequence: u64, start: LogPosition) -> Catalogue {
        Catalogue {
            start,
            last: start,
            segments: VecDeque::from([SegmentSpan { sequence, base: start }]),
            points: VecDeque::new(),
            runs: VecDeque::from([start]),
            point_due: true,
        }
    }

    pub fn start(&self) -> LogPosition {
        self.start
    }

    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Returns the sequences of all segments, oldest first. Readers use it to detect the release of a
    /// segment during a read.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        self.segments.iter().map(|span| span.sequence)
    }

    /// Continues the log in a new segment after `base`, and invalidates the entries above it.
    pub fn cut(&mut self, sequence: u64, base: LogPosition) {
        let tail = self.segments.back().expect("a log always has a segment");
        assert_eq!(sequence, tail.sequence + 1, "segments are numbered without gaps");
        assert!(base.index <= self.last.index, "a segment cannot begin after the end of the log");
        self.truncate(base.index);
        assert_eq!(self.last, base, "the base of a segment is the entry before it");
        self.segments.push_back(SegmentSpan { sequence, base });
        self.point_due = true;
    }

    /// Adds an entry that was synced (or found synced) at `offset` of the latest segment. Writer and
    /// recovery both call this, so a reopened log has the same catalogue as before.
    pub fn entry(&mut self, position: LogPosition, offset: u64) {
        let tail = self.segments.back().expect("a log always has a segment");
        assert!(position.index > tail.base.index, "an entry below its segment's base");
        assert!(position.index <= self.last.index.next(), "gap in the log");
        let place = FramePlace { segment: tail.sequence, offset };
        if position.index <= self.last.index {
            self.truncate(LogIndex(position.index.0 - 1));
            self.point_due = true;
        }
        assert!(position.term >= self.last.term, "terms never go back along a log");
        let near = |point: &Point| offset - point.place.offset < POINT_SPACING_BYTES;
        if self.point_due || !self.points.back().is_some_and(near) {
            self.points.push_back(Point { index: position.index, place });
            self.point_due = false;
        }
        if position.term != self.last.term {
            self.runs.push_back(position);
        }
        self.last = position;
    }

    fn truncate(&mut self, index: LogIndex) {
        assert!(index >= self.start.index, "entries up to the start are settled");
        let term = self.term(index).expect("the new end of the log is within it");
        while self.points.back().is_some_and(|point| point.index > index) {
            self.points.pop_back();
        }
        while self.runs.back().is_some_and(|run| run.index > index) {
            self.runs.pop_back();
        }
        self.last = LogPosition { index, term };
    }

    /// Returns the term of a retained entry or of the start.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        if index < self.start.index || index > self.last.index {
            return None;
        }
        // The first run starts at `start`, so there is always one at or before the index.
        let after = self.runs.partition_point(|run| run.index <= index);
        Some(self.runs[after - 1].term)
    }

    /// Returns the segments with only entries below `index`, oldest first; never the latest segment.
    pub fn releasable(&self, index: LogIndex) -> Vec<u64> {
        self.segments.iter().take(self.first_kept(index)).map(|span| span.sequence).collect()
    }

    /// Returns the start of the log after a release of those segments, or of the first `segments_max`. The
    /// release extends past a conflict, because there the base of a segment is not the start of the log.
    pub fn release_point(&self, index: LogIndex, segments_max: usize) -> LogPosition {
        let last = self.first_kept(index);
        assert!(last < self.segments.len(), "the newest segment is never released");
        let stays_after = |at: &usize| {
            let base = self.segments[*at].base;
            self.segments.range(*at..=last).all(|later| later.base.index >= base.index)
        };
        let at =
            (last.min(segments_max)..=last).find(stays_after).expect("the last one has nothing after it");
        let base = self.segments[at].base;
        assert!(base.index >= self.start.index, "a release never turns back");
        base
    }

    /// Returns the oldest entry known to lie within the last `bytes` of the log up to `index`, or the start
    /// if all entries do. The result is rounded to a point: the log from there has at least that size, and
    /// exceeds it by at most the spacing of points or one entry.
    pub fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        let upto = self.points.partition_point(|point| point.index <= index);
        let mut left = bytes;
        // Iterate from the latest point backwards, ignoring the remainder of a segment after its last point.
        for at in (1..upto).rev() {
            let (older, newer) = (self.points[at - 1].place, self.points[at].place);
            let from = if older.segment == newer.segment { older.offset } else { 0 };
            left = left.saturating_sub(newer.offset.saturating_sub(from));
            if left == 0 {
                return self.points[at - 1].index;
            }
        }
        self.start.index
    }

    /// Returns the number of releasable segments. Bases may decrease at a conflict, so the latest segment
    /// with a base below `index` decides.
    fn first_kept(&self, index: LogIndex) -> usize {
        self.segments.iter().rposition(|span| span.base.index < index).unwrap_or(0)
    }

    /// Removes the oldest segments, as returned by [`Catalogue::releasable`]. Their entries become
    /// unreadable.
    pub fn release(&mut self, sequences: &[u64]) {
        for &sequence in sequences {
            let released = self.segments.pop_front().expect("a log always has a segment");
            assert_eq!(released.sequence, sequence, "segments are released oldest first");
        }
        let start = self.segments.front().expect("the newest segment is never released").base;
        assert!(start.index >= self.start.index, "a release never turns back");
        self.start = start;
        while self.points.front().is_some_and(|point| point.index <= start.index) {
            self.points.pop_front();
        }
        while self.runs.get(1).is_some_and(|run| run.index <= start.index) {
            self.runs.pop_front();
        }
        // The first run lost its beginning.
        self.runs[0] = start;
    }

    /// Returns the stretch that starts at or shortly before `index`; `None` beyond the end of the log.
    pub fn locate(&self, index: LogIndex) -> Result<Option<Stretch>> {
        if index <= self.start.index {
            return Err(Error::Released { index, first: self.start.index.next() });
        }
        if index > self.last.index {
            return Ok(None);
        }
        let after = self.points.partition_point(|point| point.index <= index);
        assert!(after > 0, "every entry kept has a point at or before it");
        let point = self.points[after - 1];
        let last = match self.points.get(after) {
            Some(next) => LogIndex(next.index.0 - 1),
            None => self.last.index,
        };
        Ok(Some(Stretch { first: point.index, place: point.place, last }))
    }
}

/// Size at which a group is written without a sync request, so that a caller that never syncs cannot
/// exhaust memory. Writing this much takes far longer than a sync, so larger groups would not be more
/// efficient.
pub(crate) const GROUP_BYTES_MAX: usize = 8 << 20;
/// Buffer capacity that an idle log retains.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Mean group size above which files grow by the group. Zeros written ahead of groups this large would
/// double the bytes written for a sync that is a sixth shorter (docs/decisions/0002).
const LARGE_BYTES: usize = 4 << 10;
/// Approximate window of the running mean, in groups.
const MEAN_GROUPS: usize = 8;

/// An entry in the group, and its future location.
///
/// Added to the catalogue only after the sync; otherwise readers could see entries that may still be
/// lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedEntry {
    pub position: LogPosition,
    pub offset: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SyncGroup {
    /// Complete frames, to be written at the end of the tail.
    pub bytes: Vec<u8>,
    pub frames: u64,
    /// Entries for the catalogue, in frame order.
    pub entries: Vec<StagedEntry>,
    pub crc: u32,
    mean_bytes: usize,
}

impl SyncGroup {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame, to be written at the end of `tail`. The tail must not change until the group is
    /// written.
    pub fn push<F>(&mut self, tail: &Tail<F>, type_: Type, kind: u8, position: LogPosition, payload: &[u8]) {
        let offset = tail.end + self.bytes.len() as u64;
        let header = Header {
            type_,
            kind,
            length: payload.len(),
            group: u32::try_from(tail.end).expect("a segment is far below 4 GiB"),
            previous: if self.is_empty() { tail.crc } else { self.crc },
            position,
        };
        self.crc = frame::encode(&mut self.bytes, &tail.seed, &header, payload);
        self.frames += 1;
        match type_ {
            Type::Entry => self.entries.push(StagedEntry { position, offset }),
            Type::State | Type::Mark => {}
        }
        assert_eq!(
            tail.end + self.bytes.len() as u64,
            offset + header.frame_bytes() as u64,
            "frames lie back to back"
        );
    }

    /// Returns the term of an entry in the group. The latest frame of an index is the valid one.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        self.entries
            .iter()
            .rev()
            .find(|staged| staged.position.index == index)
            .map(|found| found.position.term)
    }

    /// Returns by how much a file should grow if this group, which is about to be written, exceeds it. The
    /// mean decides, not the group: occasional small groups among large ones would otherwise write zeros
    /// for all of them.
    pub fn growth_step(&mut self) -> u64 {
        self.mean_bytes = (self.mean_bytes * (MEAN_GROUPS - 1) + self.bytes.len()) / MEAN_GROUPS;
        if self.mean_bytes < LARGE_BYTES { AHEAD_BYTES } else { PAGE_BYTES as u64 }
    }

    /// Empties the group but retains a bounded buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_BYTES_MAX);
        self.entries.clear();
        self.frames = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn at(index: u64, term: u64) -> LogPosition {
        LogPosition::new(index, term)
    }

    fn add(catalogue: &mut Catalogue, indexes: std::ops::RangeInclusive<u64>, term: u64, mut offset: u64) {
        for index in indexes {
            catalogue.entry(at(index, term), offset);
            offset += 1000;
        }
    }

    fn stretch(catalogue: &Catalogue, index: u64) -> Option<(u64, u64, u64, u64)> {
        let found = catalogue.locate(LogIndex(index)).unwrap()?;
        Some((found.first.0, found.last.0, found.place.segment, found.place.offset))
    }

    #[test]
    fn points_are_sparse_and_stretches_reach_to_the_next_one() {
        let mut catalogue = Catalogue::new(1, at(0, 0));
        add(&mut catalogue, 1..=200, 1, 4096);
        assert_eq!(catalogue.points.len(), 4, "one per 64 KiB");
        assert_eq!(stretch(&catalogue, 1), Some((1, 66, 1, 4096)));
        assert_eq!(stretch(&catalogue, 66), Some((1, 66, 1, 4096)));
        assert_eq!(stretch(&catalogue, 67), Some((67, 132, 1, 4096 + 66_000)));
        assert_eq!(stretch(&catalogue, 200), Some((199, 200, 1, 4096 + 198_000)));
        assert_eq!(stretch(&catalogue, 201), None);
    }

    #[test]
    fn a_conflict_forgets_what_it_replaces() {
        let mut catalogue = Catalogue::new(1, at(0, 0));
        add(&mut catalogue, 1..=10, 1, 4096);
        catalogue.entry(at(4, 2), 20_000);
        assert_eq!(catalogue.last(), at(4, 2));
        assert_eq!(stretch(&catalogue, 3), Some((1, 3, 1, 4096)));
        assert_eq!(stretch(&catalogue, 4), Some((4, 4, 1, 20_000)));
        assert_eq!(
            (catalogue.term(LogIndex(3)), catalogue.term(LogIndex(4))),
            (Some(Term(1)), Some(Term(2)))
        );
        assert_eq!(catalogue.term(LogIndex(5)), None);
        // Repeated conflicts at the same index do not accumulate points.
        for term in 3..100 {
            catalogue.entry(at(4, term), 20_000 + term);
        }
        assert_eq!((catalogue.points.len(), catalogue.runs.len()), (2, 3));
    }

    #[test]
    fn terms_are_kept_as_runs() {
        let mut catalogue = Catalogue::new(1, at(10, 3));
        add(&mut catalogue, 11..=20, 3, 4096);
        add(&mut catalogue, 21..=30, 5, 20_000);
        assert_eq!(catalogue.runs.len(), 2);
        for (index, term) in
            [(9, None), (10, Some(3)), (20, Some(3)), (21, Some(5)), (30, Some(5)), (31, None)]
        {
            assert_eq!(catalogue.term(LogIndex(index)), term.map(Term), "index {index}");
        }
    }

    #[test]
    fn segments_are_released_when_all_their_entries_are_below_the_index() {
        let mut catalogue = Catalogue::new(1, at(0, 0));
        add(&mut catalogue, 1..=10, 1, 4096);
        catalogue.cut(2, at(10, 1));
        add(&mut catalogue, 11..=20, 2, 4096);
        catalogue.cut(3, at(20, 2));
        assert_eq!(catalogue.releasable(LogIndex(10)), []);
        assert_eq!(catalogue.releasable(LogIndex(11)), [1]);
        assert_eq!(catalogue.releasable(LogIndex(20)), [1]);
        assert_eq!(catalogue.releasable(LogIndex(21)), [1, 2]);
        assert_eq!(catalogue.releasable(LogIndex(u64::MAX)), [1, 2], "never the newest");
        let points: Vec<LogPosition> =
            [0, 1, 2, 9].map(|most| catalogue.release_point(LogIndex(u64::MAX), most)).into();
        assert_eq!(points, [at(0, 0), at(10, 1), at(20, 2), at(20, 2)]);
        assert_eq!(catalogue.release_point(LogIndex(20), 9), at(10, 1));
        catalogue.release(&[1]);
        assert_eq!((catalogue.start(), catalogue.term(LogIndex(10))), (at(10, 1), Some(Term(1))));
        assert!(matches!(catalogue.locate(LogIndex(10)), Err(Error::Released { first: LogIndex(11), .. })));
        assert_eq!(stretch(&catalogue, 11), Some((11, 20, 2, 4096)));
        assert_eq!(catalogue.segments().collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn so_many_bytes_of_the_log_reach_back_to_a_point() {
        let mut catalogue = Catalogue::new(1, at(0, 0));
        add(&mut catalogue, 1..=200, 1, 4096);
        catalogue.cut(2, at(200, 1));
        add(&mut catalogue, 201..=400, 1, 4096);
        let back = |index, bytes| catalogue.back_by(LogIndex(index), bytes).0;
        // Points at 1, 67, 133 and 199 of the first segment, 201, 267, 333 and 399 of the second.
        assert_eq!([1, 66_000, 66_001, 132_000].map(|bytes| back(400, bytes)), [333, 333, 267, 267]);
        assert_eq!(back(400, 199_000), 199, "into the segment before");
        assert_eq!(back(300, 1), 201, "from the middle of a stretch");
        assert_eq!([back(400, 1 << 30), back(50, 1), back(0, 1)], [0; 3], "never beyond the start");
    }

    #[test]
    fn a_log_that_turned_back_across_segments_is_released_in_one_go() {
        let mut catalogue = Catalogue::new(1, at(0, 0));
        add(&mut catalogue, 1..=10, 1, 4096);
        catalogue.cut(2, at(10, 1));
        add(&mut catalogue, 11..=12, 1, 4096);
        catalogue.cut(3, at(6, 1));
        assert_eq!(catalogue.last(), at(6, 1), "a base ends the log");
        add(&mut catalogue, 7..=20, 2, 4096);
        assert_eq!(catalogue.releasable(LogIndex(6)), []);
        assert_eq!(catalogue.releasable(LogIndex(7)), [1, 2]);
        for segments_max in 1..4 {
            assert_eq!(
                catalogue.release_point(LogIndex(7), segments_max),
                at(6, 1),
                "never the base in between"
            );
        }
        catalogue.release(&[1, 2]);
        assert_eq!(catalogue.start(), at(6, 1));
        assert_eq!(stretch(&catalogue, 7), Some((7, 20, 3, 4096)));
    }

    #[test]
    #[should_panic(expected = "terms never go back")]
    fn a_term_that_goes_back_panics() {
        let mut catalogue = Catalogue::new(1, at(5, 5));
        catalogue.entry(at(6, 4), 4096);
    }

    #[test]
    #[should_panic(expected = "numbered without gaps")]
    fn a_gap_among_segments_panics() {
        Catalogue::new(1, at(0, 0)).cut(3, at(0, 0));
    }

    #[test]
    #[should_panic(expected = "below its segment's base")]
    fn an_entry_below_the_base_panics() {
        Catalogue::new(1, at(5, 5)).entry(at(5, 5), 4096);
    }

    fn tail() -> Tail<()> {
        let (path, base) = (PathBuf::from("/wal/1"), LogPosition::default());
        let seed = frame::Seed { crc: 3, mask: [4; 16] };
        Tail { file: (), path, sequence: 1, base, seed, end: 5000, crc: 77, written: 8192 }
    }

    #[test]
    fn frames_are_chained_from_the_tail_on_and_name_their_group() {
        let (tail, mut group) = (tail(), SyncGroup::default());
        group.push(&tail, Type::Entry, 1, at(1, 1), b"one");
        group.push(&tail, Type::State, 0, LogPosition::default(), b"state");
        group.push(&tail, Type::Entry, 2, at(2, 1), b"");
        let (mut previous, mut offset) = (tail.crc, 0);
        for expected in [Type::Entry, Type::State, Type::Entry] {
            let bytes = &group.bytes[offset..];
            let header = frame::decode_header(&tail.seed, bytes).unwrap();
            assert_eq!((header.type_, header.previous, header.group), (expected, previous, 5000));
            previous = frame::decode(&tail.seed, header, bytes).unwrap().crc;
            offset += header.frame_bytes();
        }
        assert_eq!((offset, previous), (group.bytes.len(), group.crc));
        let offsets: Vec<u64> = group.entries.iter().map(|staged| staged.offset).collect();
        assert_eq!(offsets, [5000, 5000 + 40 + 44], "only entries are staged");
    }

    #[test]
    fn files_grow_by_the_page_where_groups_are_usually_large() {
        let mut group = SyncGroup::default();
        let mut step_after = |bytes: usize| {
            group.bytes = vec![0; bytes];
            group.growth_step()
        };
        assert_eq!([300; 20].map(&mut step_after), [AHEAD_BYTES; 20], "small groups");
        let large = [26 << 10; 20].map(&mut step_after);
        assert_eq!((large[0], large[19]), (AHEAD_BYTES, PAGE_BYTES as u64), "large ones, after a while");
        assert_eq!(step_after(300), PAGE_BYTES as u64, "a small one among them");
        assert_eq!([300; 20].map(&mut step_after)[19], AHEAD_BYTES, "small ones again");
    }

    #[test]
    fn the_latest_term_of_an_index_counts() {
        let (tail, mut group) = (tail(), SyncGroup::default());
        for position in [at(1, 1), at(2, 1), at(1, 4)] {
            group.push(&tail, Type::Entry, 0, position, b"");
        }
        assert_eq!(group.term(LogIndex(1)), Some(Term(4)));
        assert_eq!(group.term(LogIndex(2)), Some(Term(1)));
        assert_eq!(group.term(LogIndex(3)), None);
    }

    #[test]
    fn an_empty_group_keeps_a_bounded_buffer() {
        let (tail, mut group) = (tail(), SyncGroup::default());
        group.push(&tail, Type::State, 0, LogPosition::default(), &vec![0; 3 << 20]);
        group.clear();
        assert!(group.is_empty() && group.frames == 0 && group.entries.is_empty());
        assert!(group.bytes.capacity() <= IDLE_BYTES_MAX);
        group.push(&tail, Type::Mark, 0, LogPosition::default(), b"");
        assert_eq!(
            frame::decode_header(&tail.seed, &group.bytes).unwrap().previous,
            tail.crc,
            "a new group, the old tail"
        );
    }
}
