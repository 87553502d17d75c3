//! Corrupts a log in every location and checks that it is never silently shorter, longer or different.

use crate::common;
use crate::common::{Contents, append, at, copy, create, dir, open, payload, segment};
use proptest::prelude::*;
use wal::testing::SimFs;
use wal::{Error, File, Fs, LogIndex};

fn contents(fs: &SimFs) -> Result<Contents, Error> {
    common::contents(fs, common::OPTIONS)
}

/// Writes several groups to one segment, without closing the log.
fn unclosed() -> SimFs {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    append(&mut wal, 1, 1, b"first");
    wal.put_state(b"vote for 3");
    wal.sync().unwrap();
    append(&mut wal, 2, 1, &payload(2, 1, 301));
    append(&mut wal, 3, 1, b"");
    wal.sync().unwrap();
    append(&mut wal, 3, 2, b"instead of the third");
    append(&mut wal, 4, 2, b"last");
    wal.sync().unwrap();
    fs
}

fn closed() -> SimFs {
    let fs = unclosed();
    // Opening seals the used segment; later writes use a second one.
    let (mut wal, _) = open(&fs).unwrap();
    append(&mut wal, 5, 2, b"in the second segment");
    wal.close().unwrap();
    fs
}

/// Returns the range of the last group of `unclosed`.
fn last_group(fs: &SimFs) -> std::ops::Range<usize> {
    let bytes = fs.bytes(&segment(1));
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let groups = [5usize, 10, 301, 0];
    let begin = 4096 + groups.iter().map(|length| 36 + length.next_multiple_of(4)).sum::<usize>();
    begin..end
}

#[test]
fn no_flipped_byte_of_a_closed_log_goes_unnoticed() {
    let fs = closed();
    let whole = contents(&copy(&fs)).unwrap();
    assert_eq!(whole.1.len(), 5);
    let mut refused = 0;
    for sequence in [1, 2] {
        for offset in 0..fs.bytes(&segment(sequence)).len() {
            let damaged = copy(&fs);
            damaged.damage(&segment(sequence), |bytes| bytes[offset] ^= 1 << (offset % 8));
            match contents(&damaged) {
                Err(Error::Corrupt { segment, offset: reported, .. }) => {
                    assert!(
                        segment == sequence && reported <= offset as u64,
                        "{segment} {reported} for {sequence} {offset}"
                    );
                    refused += 1;
                }
                Err(other) => panic!("segment {sequence}, offset {offset}: {other}"),
                // Bytes after the end, or in the closing mark itself, are not needed.
                Ok(found) => {
                    assert_eq!(
                        (&found.0.last, &found.0.state, &found.1),
                        (&whole.0.last, &whole.0.state, &whole.1)
                    );
                }
            }
        }
    }
    // Two header pages and every frame except the mark.
    assert!(refused > 2 * 4096 + 400, "{refused}");
}

#[test]
fn a_flipped_byte_of_an_unclosed_log_is_either_refused_or_shows_as_a_torn_last_group() {
    let fs = unclosed();
    let whole = contents(&copy(&fs)).unwrap();
    let last = last_group(&fs);
    for offset in 0..fs.bytes(&segment(1)).len() {
        let damaged = copy(&fs);
        damaged.damage(&segment(1), |bytes| bytes[offset] ^= 1 << (offset % 8));
        let found = contents(&damaged);
        if offset < last.start {
            assert!(matches!(found, Err(Error::Corrupt { segment: 1, .. })), "offset {offset}: {found:?}");
        } else if last.contains(&offset) {
            let (recovery, found) = found.unwrap();
            assert!(recovery.torn_bytes > 0, "offset {offset}");
            assert!(
                recovery.last < whole.0.last && found[..2] == whole.1[..2],
                "offset {offset}: {recovery:?}"
            );
        } else {
            assert_eq!(found.unwrap().1, whole.1, "offset {offset}");
        }
    }
}

#[test]
fn a_zeroed_sector_is_noticed() {
    let fs = closed();
    let whole = contents(&copy(&fs)).unwrap();
    for sequence in [1, 2] {
        for sector in 0..fs.bytes(&segment(sequence)).len() / 512 {
            let damaged = copy(&fs);
            damaged.damage(&segment(sequence), |bytes| bytes[sector * 512..][..512].fill(0));
            let same = copy(&fs);
            let unchanged = damaged.bytes(&segment(sequence)) == same.bytes(&segment(sequence));
            match contents(&damaged) {
                Ok(found) => assert!(unchanged && found.1 == whole.1 || is_last_sector(sequence, sector)),
                Err(error) => assert!(!unchanged && matches!(error, Error::Corrupt { .. }), "{error}"),
            }
        }
    }
}

/// Reports whether this sector contains the mark together with its group. Without both, they look like
/// a group that was never written.
fn is_last_sector(sequence: u64, sector: usize) -> bool {
    sequence == 2 && sector == 8
}

#[test]
fn a_zeroed_length_does_not_end_the_log() {
    let fs = unclosed();
    fs.damage(&segment(1), |bytes| bytes[4096 + 8..][..4].fill(0));
    match contents(&fs) {
        Err(Error::Corrupt { segment, offset, reason }) => {
            assert_eq!((segment, offset, reason), (1, 4096, "corrupt frame header"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_group_in_the_middle_is_damage_and_a_lost_frame_of_the_last_group_is_not() {
    let fs = unclosed();
    let last = last_group(&fs);
    let middle = copy(&fs);
    middle.damage(&segment(1), |bytes| bytes[4096..][..36 + 8].fill(0));
    match contents(&middle) {
        Err(error) => assert_eq!(
            error.to_string(),
            "log segment 0000000000000001 is corrupt at offset 4096: zeros where a frame should be"
        ),
        Ok(found) => panic!("{found:?}"),
    }
    // The last group's first frame never reached the disk, its second one did.
    fs.damage(&segment(1), |bytes| bytes[last.start..][..36 + 20].fill(0));
    let (recovery, found) = contents(&fs).unwrap();
    assert_eq!((recovery.last, found.len()), (at(3, 1), 3));
    assert_eq!(recovery.torn_bytes, last.len() as u64);
}

#[test]
fn a_torn_tail_stays_gone() {
    let fs = unclosed();
    let last = last_group(&fs);
    fs.damage(&segment(1), |bytes| bytes[last.start..][..36 + 20].fill(0));
    let (mut wal, _) = open(&fs).unwrap();
    // Append the lost bytes again before the surviving frame of their group: it must not join the chain.
    append(&mut wal, 3, 2, b"instead of the third");
    wal.sync().unwrap();
    drop(wal);
    let (recovery, found) = contents(&fs).unwrap();
    assert_eq!((recovery.last, recovery.torn_bytes, found.len()), (at(3, 2), 0, 3));
}

#[test]
fn a_sealed_segment_cannot_be_cut_short() {
    let fs = closed();
    let bytes = fs.bytes(&segment(1)).len();
    let end = last_group(&unclosed()).end;
    for length in (0..bytes).step_by(37) {
        let damaged = copy(&fs);
        damaged.damage(&segment(1), |bytes| bytes.truncate(length));
        let found = contents(&damaged);
        assert_eq!(found.is_err(), length < end.next_multiple_of(4), "{length} of {bytes} bytes: {found:?}");
    }
}

#[test]
fn segments_of_another_log_a_gap_and_a_swap_are_refused() {
    let fs = closed();
    let other = SimFs::new();
    let options = common::OPTIONS;
    drop(wal::Wal::create(other.clone(), dir(), b"member 8", at(0, 0), options).unwrap());
    let alien = other.bytes(&segment(1));

    let refused = |fs: &SimFs, expected: &str| {
        let error = contents(fs).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error} is not {expected}");
    };
    let swapped = copy(&fs);
    swapped.damage(&segment(1), |bytes| *bytes = alien.clone());
    refused(&swapped, "the segment belongs to another log");

    let renamed = copy(&fs);
    let second = fs.bytes(&segment(2));
    renamed.damage(&segment(1), |bytes| *bytes = second);
    refused(&renamed, "the header belongs to another segment");

    let gap = copy(&fs);
    let (mut wal, _) = open(&gap).unwrap();
    append(&mut wal, 6, 2, b"in the third segment");
    wal.close().unwrap();
    gap.remove(&segment(2)).unwrap();
    refused(&gap, "segment 0000000000000002 is corrupt at offset 0: the segment is missing");
}

#[test]
fn damage_found_by_a_reader_is_an_error_too() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    append(&mut wal, 1, 1, &payload(1, 1, 600));
    append(&mut wal, 2, 1, &payload(2, 1, 600));
    wal.sync().unwrap();
    fs.damage(&segment(1), |bytes| bytes[4096 + 636 + 100] ^= 4);
    let reader = wal.reader();
    assert_eq!(reader.read(LogIndex(1), 0).unwrap().len(), 1, "the first entry is sound");
    for from in [1, 2] {
        match reader.read(LogIndex(from), 10_000) {
            Err(Error::Corrupt { segment: 1, offset: 4732, reason }) => {
                assert_eq!(reason, "frame checksum mismatch");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    let fs = closed();
    for name in
        ["lost+found", "1.wal", "000000000000000G.wal", "0000000000000001.wal.old", "+000000000000001.wal"]
    {
        fs.create(&dir().join(name)).unwrap();
    }
    assert_eq!(contents(&fs).unwrap().1.len(), 5);
    assert_eq!(fs.list(dir()).unwrap().iter().filter(|name| name.ends_with(".old")).count(), 1);
}

proptest! {
    /// Garbage after the frames does not make recovery panic, allocate or invent entries.
    #[test]
    fn garbage_after_the_end_changes_nothing(
        garbage in proptest::collection::vec(any::<u8>(), 0..3000),
        gap in 0usize..64,
    ) {
        let fs = unclosed();
        let end = last_group(&fs).end.next_multiple_of(4);
        let whole = contents(&copy(&fs)).unwrap();
        fs.damage(&segment(1), |bytes| {
            bytes.truncate(end + gap);
            bytes.resize(end + gap, 0);
            bytes.extend_from_slice(&garbage);
        });
        let found = contents(&fs).unwrap();
        prop_assert_eq!(found.1, whole.1);
    }

    /// Several corrupt bytes in random locations.
    #[test]
    fn scattered_damage_never_changes_an_entry(
        changes in proptest::collection::vec((0usize..8192, 1u8..), 1..6),
    ) {
        let fs = closed();
        let whole = contents(&copy(&fs)).unwrap();
        for (offset, mask) in changes {
            fs.damage(&segment(1), |bytes| if let Some(byte) = bytes.get_mut(offset) { *byte ^= mask });
        }
        if let Ok(found) = contents(&fs) {
            prop_assert_eq!(found.1, whole.1);
        }
    }
}

#[test]
fn a_file_that_claims_the_longest_frame_costs_no_more_than_itself() {
    // A valid header with a length of 16 MiB, in a file that was truncated after 4 KiB.
    let fs = SimFs::new();
    let options = wal::WalOptions { segment_bytes: wal::WalOptions::SEGMENT_BYTES, salt: [7; 16] };
    let mut wal = wal::Wal::create(fs.clone(), dir(), common::IDENTITY, at(0, 0), options).unwrap();
    append(&mut wal, 1, 1, &vec![1; wal::PAYLOAD_BYTES_MAX]);
    wal.sync().unwrap();
    drop(wal);
    fs.damage(&segment(1), |bytes| bytes.truncate(8192));
    let (recovery, found) = contents(&fs).unwrap();
    assert_eq!((recovery.last, found.len()), (at(0, 0), 0));
    assert!(fs.open(&segment(1)).unwrap().len().unwrap() <= 8192);
}
