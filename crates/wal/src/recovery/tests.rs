//! Recovery of handcrafted segments.

use super::*;
use crate::entries::SyncGroup;
use crate::format::segment::Birth;
use crate::testing::{SimFile, SimFs};

const SEGMENT_BYTES: u64 = 64 << 10;

fn at(index: u64, term: u64) -> LogPosition {
    LogPosition::new(index, term)
}

fn dir() -> &'static Path {
    Path::new("/wal")
}

fn begin(
    fs: &SimFs,
    sequence: u64,
    base: LogPosition,
    descent: Descent,
    state: Option<&[u8]>,
) -> Tail<SimFile> {
    fs.create_dir(dir()).unwrap();
    let birth = Birth { sequence, base, descent, identity: b"id", salt: [7; 16], state };
    segment::begin(fs, dir(), &birth, Spare::Absent, SEGMENT_BYTES).unwrap()
}

fn continues(tail: &Tail<SimFile>) -> Descent {
    Descent::Continues { end: tail.end, crc: tail.crc }
}

/// Writes entries as one group, without checking their order.
fn write(tail: &mut Tail<SimFile>, positions: &[LogPosition]) {
    let mut group = SyncGroup::default();
    for &position in positions {
        group.push(tail, Type::Entry, 0, position, b"payload");
    }
    tail.write(&mut group.bytes, group.crc, SEGMENT_BYTES, SEGMENT_BYTES).unwrap();
}

fn refusal(fs: &SimFs) -> (u64, u64, &'static str) {
    match recover(fs, dir()) {
        Err(Error::Corrupt { segment, offset, reason }) => (segment, offset, reason),
        Err(error) => panic!("{error}"),
        Ok(found) => panic!("accepted up to {:?}", found.catalogue.last()),
    }
}

#[test]
fn nonsense_in_sound_frames_is_refused() {
    for (second, reason) in [
        (at(8, 2), "gap in the log"),
        (at(5, 2), "an entry below the base of its segment"),
        (at(0, 2), "an entry below the base of its segment"),
        (at(7, 1), "the term goes back"),
        (at(6, 0), "the term goes back"),
    ] {
        let fs = SimFs::new();
        let mut tail = begin(&fs, 1, at(5, 1), Descent::Origin, None);
        write(&mut tail, &[at(6, 2), second]);
        assert_eq!(refusal(&fs), (1, 4096 + 44, reason), "{second:?}");
    }
}

#[test]
fn a_base_that_is_not_in_the_log_is_refused() {
    for base in [at(7, 2), at(6, 1), at(9, 9)] {
        let fs = SimFs::new();
        let mut tail = begin(&fs, 1, at(5, 1), Descent::Origin, None);
        write(&mut tail, &[at(6, 2)]);
        begin(&fs, 2, base, continues(&tail), None);
        assert_eq!(refusal(&fs), (2, 0, "the base is not an entry of the log"));
    }
}

#[test]
fn a_successor_that_tells_another_end_is_refused() {
    let fs = SimFs::new();
    let mut tail = begin(&fs, 1, at(5, 1), Descent::Origin, None);
    write(&mut tail, &[at(6, 2)]);
    let Descent::Continues { end, crc } = continues(&tail) else { unreachable!() };
    for (end, crc, refused) in [
        (end, crc ^ 1, (1, end, "the successor continues another segment")),
        (end - 44, crc, (1, end - 44, "the successor continues another segment")),
        (end + 44, crc, (1, end, "zeros where a frame should be")),
        (end - 4, crc, (1, end - 44, "the segment ends within a frame")),
        (4000, crc, (1, SEGMENT_BYTES, "the segment is cut short")),
        (1 << 40, crc, (1, SEGMENT_BYTES, "the segment is cut short")),
    ] {
        let copy = fs.crashed(crate::testing::Crash::Kill, &mut || false);
        begin(&copy, 2, at(5, 1), Descent::Continues { end, crc }, None);
        assert_eq!(refusal(&copy), refused);
    }
}

#[test]
fn a_damaged_state_at_the_head_is_no_torn_tail() {
    let fs = SimFs::new();
    let tail = begin(&fs, 1, at(0, 0), Descent::Origin, Some(b"vote"));
    fs.damage(&tail.path, |bytes| bytes[4096 + 37] ^= 1);
    assert_eq!(refusal(&fs), (1, 4096, "frame checksum mismatch"));
}

#[test]
fn a_frame_from_another_past_is_damage() {
    let fs = SimFs::new();
    let mut tail = begin(&fs, 1, at(0, 0), Descent::Origin, None);
    write(&mut tail, &[at(1, 1)]);
    let end = tail.end;
    tail.crc ^= 1;
    write(&mut tail, &[at(2, 1)]);
    assert_eq!(refusal(&fs), (1, end, "the chain of frames is broken"));
}

#[test]
fn a_witness_of_a_later_group_makes_damage_of_a_torn_tail() {
    for (groups, damaged, expected) in [
        // One group of three, never reported as synced. (The last byte of the last frame is padding, and a
        // zero is inconclusive.)
        (vec![3], 1, Ok((1, 88))),
        (vec![3], 0, Ok((0, 132))),
        (vec![3], 2, Ok((2, 43))),
        // The last entry is a separate group, which proves that the first group was synced.
        (vec![2, 1], 0, Err(4096)),
        (vec![2, 1], 1, Err(4096 + 44)),
        (vec![2, 1], 2, Ok((2, 43))),
        (vec![1, 1, 1], 1, Err(4096 + 44)),
    ] {
        let fs = SimFs::new();
        let mut tail = begin(&fs, 1, at(0, 0), Descent::Origin, None);
        let mut next = 1..;
        for count in &groups {
            let positions: Vec<LogPosition> = next.by_ref().take(*count).map(|index| at(index, 1)).collect();
            write(&mut tail, &positions);
        }
        // Start at the tenth byte, so that the frame still refers to its predecessor.
        fs.damage(&tail.path, |bytes| bytes[4096 + damaged * 44 + 40] ^= 0xff);
        match (recover(&fs, dir()), expected) {
            (Ok(found), Ok((last, torn_bytes))) => {
                assert_eq!((found.catalogue.last().index.0, found.torn_bytes), (last, torn_bytes));
                assert_eq!(found.ending, Ending::Used);
            }
            (Err(Error::Corrupt { offset, .. }), Err(expected)) => assert_eq!(offset, expected),
            (found, expected) => panic!("{groups:?}, {damaged}: {:?} for {expected:?}", found.err()),
        }
    }
}

#[test]
fn what_lies_before_an_origin_is_void_even_with_gaps() {
    let fs = SimFs::new();
    for sequence in [1, 2, 5] {
        begin(&fs, sequence, at(sequence, 1), Descent::Origin, None);
    }
    fs.damage(&segment::path(dir(), 2), |bytes| bytes.fill(0xee));
    let mut tail = begin(&fs, 6, at(40, 3), Descent::Origin, Some(b"new"));
    write(&mut tail, &[at(41, 3)]);
    let found = recover(&fs, dir()).unwrap();
    assert_eq!(
        (found.void, found.catalogue.start(), found.catalogue.last()),
        (vec![1, 2, 5], at(40, 3), at(41, 3))
    );
    assert_eq!(found.state.as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_release_cut_short_behind_a_conflict_is_finished() {
    let fs = SimFs::new();
    // Segment 1, with entries 1 to 9, has been removed. The log went back from 12 to 6 before its release.
    let lost = Descent::Continues { end: 5000, crc: 7 };
    let mut tail = begin(&fs, 2, at(9, 1), lost, Some(b"kept"));
    write(&mut tail, &[at(10, 1), at(11, 1), at(12, 1)]);
    let mut tail = begin(&fs, 3, at(6, 1), continues(&tail), None);
    write(&mut tail, &[at(7, 2), at(8, 2)]);
    let found = recover(&fs, dir()).unwrap();
    assert_eq!(found.void, [2]);
    assert_eq!((found.catalogue.start(), found.catalogue.last()), (at(6, 1), at(8, 2)));
    assert_eq!(found.catalogue.segments().collect::<Vec<_>>(), [3]);
    assert_eq!(found.state.as_deref(), Some(&b"kept"[..]));
}

#[test]
fn the_last_group_is_known_for_its_renewal() {
    let fs = SimFs::new();
    let mut tail = begin(&fs, 1, at(0, 0), Descent::Origin, None);
    assert_eq!(recover(&fs, dir()).unwrap().last_group, 4096);
    write(&mut tail, &[at(1, 1), at(2, 1)]);
    let last_group = tail.end;
    write(&mut tail, &[at(3, 1), at(4, 1)]);
    let found = recover(&fs, dir()).unwrap();
    assert_eq!((found.last_group, found.tail.end, found.tail.crc), (last_group, tail.end, tail.crc));
    assert_eq!((found.ending, found.torn_bytes), (Ending::Used, 0));
}
