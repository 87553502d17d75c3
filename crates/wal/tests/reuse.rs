//! Client-chosen values left in a reused segment do not pass for frames of the log.

use crate::common;
use std::path::Path;

use crate::common::{DIR, IDENTITY, append, at, dir, entries};
use wal::testing::SimFs;
use wal::{Error, Fs, LogIndex, Wal, WalOptions};

/// Segments for which the attack forges frames.
const SEQUENCES: std::ops::RangeInclusive<u64> = 1..=8;

/// Forges an entry frame for segment `sequence` from public information: the identity, which consists
/// of public ids, the sequence, and a guess of the salt. Without a guess it is a frame of version 1. It
/// claims a late group, so that all bytes before it count as synced.
fn forged(sequence: u64, salt: &[u8]) -> Vec<u8> {
    let of_log = crc32c::crc32c_append(crc32c::crc32c(IDENTITY), salt);
    let seed = crc32c::crc32c_append(of_log, &sequence.to_le_bytes());
    let mut frame = vec![0; 36];
    frame[6] = 1;
    frame[12..16].copy_from_slice(&60_000u32.to_le_bytes());
    frame[20..28].copy_from_slice(&9u64.to_le_bytes());
    frame[28..36].copy_from_slice(&9u64.to_le_bytes());
    frame[8..].iter_mut().zip(salt.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    let check = (crc32c::crc32c_append(seed, &frame[6..]) & 0xffff) as u16;
    frame[4..6].copy_from_slice(&check.to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// Builds a value full of forged frames.
fn attack(salt: &[u8]) -> Vec<u8> {
    let round: Vec<u8> = SEQUENCES.flat_map(|sequence| forged(sequence, salt)).collect();
    round.repeat(20)
}

/// Fills segments with `value`, releases them, and continues in a reused one.
fn reuse(fs: &SimFs, options: WalOptions, value: &[u8]) -> u64 {
    let mut wal = Wal::create(fs.clone(), dir(), IDENTITY, at(0, 0), options).unwrap();
    let mut index = 0;
    let mut cuts = 0;
    while cuts < 4 {
        index += 1;
        append(&mut wal, index, 1, value);
        cuts += wal.sync().unwrap().cuts;
        wal.release_before(LogIndex(index)).unwrap();
    }
    index += 1;
    append(&mut wal, index, 1, b"an honest entry");
    wal.sync().unwrap();
    index
}

fn is_reused(fs: &SimFs) -> bool {
    let newest = SEQUENCES.rev().find(|s| fs_has(fs, *s)).unwrap();
    let bytes = fs.bytes(&common::segment(newest));
    bytes[8192..].iter().any(|byte| *byte != 0)
}

fn fs_has(fs: &SimFs, sequence: u64) -> bool {
    fs.list(Path::new(DIR)).unwrap().contains(&format!("{sequence:016x}.wal"))
}

const OPTIONS: WalOptions = WalOptions { segment_bytes: 64 << 10, salt: *b"drawn at random." };

#[test]
fn values_that_look_like_frames_of_the_future_do_not_stop_a_member() {
    for guess in [&b""[..], &[0; 16], b"drawn at random!"] {
        let fs = SimFs::new();
        let last = reuse(&fs, OPTIONS, &attack(guess));
        assert!(is_reused(&fs), "the attack needs bytes of a previous use after the end");
        let (wal, found) = Wal::open(fs, dir(), OPTIONS).unwrap();
        assert_eq!((found.last, found.torn_bytes), (at(last, 1), 0));
        assert_eq!(entries(&wal).unwrap().last().unwrap().payload, b"an honest entry");
    }
}

/// The forged frames are valid: with a known salt, the attack succeeds.
#[test]
fn the_salt_is_what_the_attack_lacks() {
    let fs = SimFs::new();
    reuse(&fs, OPTIONS, &attack(&OPTIONS.salt));
    let opened = Wal::open(fs, dir(), OPTIONS).map(drop);
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}
