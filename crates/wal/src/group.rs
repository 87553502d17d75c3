//! The group buffer: frames that wait for the next sync, encoded where they will lie.
//!
//! * One copy of each payload, one pass of the checksum over it, no allocation once the buffer has grown.
//! * The place is fixed when a frame is added: a segment is cut between groups, never within one.
//!
//! Knows nothing of files.

use crate::frame::{self, HEADER_BYTES, Header, Type};
use crate::segment::Tail;
use crate::{LogIndex, Position, Term};

/// A group is written when it reaches this size, even unasked, so that a caller who never syncs cannot fill the
/// memory. A sync costs far less than writing so much: longer groups would win nothing.
pub(crate) const GROUP_BYTES_MAX: usize = 8 << 20;
/// What an idle log may hold on to.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// An entry among the frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub position: Position,
    /// Offset in the segment.
    pub offset: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    pub bytes: Vec<u8>,
    pub frames: u64,
    pub entries: Vec<Staged>,
    /// Checksum of the last frame.
    pub crc: u32,
}

impl Group {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame, to be written at the end of `tail`.
    pub fn push<F>(&mut self, tail: &Tail<F>, type_: Type, kind: u8, position: Position, payload: &[u8]) {
        let offset = tail.end + self.bytes.len() as u64;
        let header = Header {
            type_,
            kind,
            length: payload.len(),
            group: u32::try_from(tail.end).expect("a segment is far below 4 GiB"),
            previous: if self.is_empty() { tail.crc } else { self.crc },
            position,
        };
        self.crc = frame::encode(&mut self.bytes, tail.seed, &header, payload);
        self.frames += 1;
        match type_ {
            Type::Entry => self.entries.push(Staged { position, offset }),
            Type::State | Type::Mark => {}
        }
        debug_assert!(self.bytes.len() >= HEADER_BYTES * to_frames(self.frames));
    }

    /// Term of an entry in the group. The latest frame of an index is the one that counts.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        self.entries
            .iter()
            .rev()
            .find(|staged| staged.position.index == index)
            .map(|found| found.position.term)
    }

    /// Empties the group, keeping the buffer for the next one.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_BYTES_MAX);
        self.entries.clear();
        self.frames = 0;
    }
}

fn to_frames(frames: u64) -> usize {
    usize::try_from(frames).expect("frames in memory fit in a usize")
}
