//! The group buffer: frames that wait for the next sync, encoded where they will lie.
//!
//! * One copy of each payload, one pass of the checksum over it, no allocation once the buffer has grown.
//! * The place is fixed when a frame is added: a segment is cut between groups, never within one.
//!
//! A conflict within a group takes nothing back: the frames that it replaces are written all the same, and
//! reading them back comes to the same end. Conflicts are rare, and a chain that is only ever extended is
//! simple.
//!
//! It remembers how large groups usually are, since that decides how a file should grow.
//!
//! Knows nothing of files.

use crate::format::frame::{self, Header, Type};
use crate::format::segment::{AHEAD_BYTES, PAGE_BYTES, Tail};
use crate::{LogIndex, LogPosition, Term};

/// A group is written when it reaches this size, even unasked, so that a caller who never syncs cannot fill
/// the memory. A sync costs far less than writing so much: longer groups would win nothing.
pub(crate) const GROUP_BYTES_MAX: usize = 8 << 20;
/// What an idle log may hold on to.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Where groups are this large, zeros ahead of them would write each byte of the log twice for a sync that is
/// a sixth shorter: the file grows by the group then (docs/decisions/0002).
const LARGE_BYTES: usize = 4 << 10;
/// Groups that the mean reaches back over, about.
const MEAN_GROUPS: usize = 8;

/// An entry among the frames, and where it will be found.
///
/// Kept until the group is synced, because a catalogue that names it sooner would let readers find what may
/// still be lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedEntry {
    pub position: LogPosition,
    /// Offset in the segment.
    pub offset: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SyncGroup {
    /// Whole frames, back to back, as they will be written after the tail's end.
    pub bytes: Vec<u8>,
    pub frames: u64,
    /// For the catalogue, once they are synced; in the order of their frames.
    pub entries: Vec<StagedEntry>,
    /// Checksum of the last frame.
    pub crc: u32,
    /// Running mean of the bytes of groups.
    mean_bytes: usize,
}

impl SyncGroup {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame, to be written at the end of `tail`. The tail must not change until the group is written.
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

    /// Term of an entry in the group. The latest frame of an index is the one that counts.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        self.entries
            .iter()
            .rev()
            .find(|staged| staged.position.index == index)
            .map(|found| found.position.term)
    }

    /// By what a file should grow if this group, which is about to be written, outgrows it. The mean decides,
    /// not the group: a small one now and then among large ones would write the zeros for all of them.
    pub fn growth_step(&mut self) -> u64 {
        self.mean_bytes = (self.mean_bytes * (MEAN_GROUPS - 1) + self.bytes.len()) / MEAN_GROUPS;
        if self.mean_bytes < LARGE_BYTES { AHEAD_BYTES } else { PAGE_BYTES as u64 }
    }

    /// Empties the group, keeping the buffer for the next one.
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

    fn tail() -> Tail<()> {
        let (path, base) = (PathBuf::from("/wal/1"), LogPosition::default());
        let seed = frame::Seed { crc: 3, mask: [4; 16] };
        Tail { file: (), path, sequence: 1, base, seed, end: 5000, crc: 77, written: 8192 }
    }

    fn at(index: u64, term: u64) -> LogPosition {
        LogPosition::new(index, term)
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
