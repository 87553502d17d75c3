//! The log's reader: damaged logs, and logs whose checksums are right while nothing else is.
//!
//! Laws: no panic; from a damaged log come either an error or entries that were really appended, none
//! changed.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wal::testing::SimFs;
use wal::{Entry, LogIndex, WalOptions, LogPosition, Term, Wal};

const DIR: &str = "/wal";
const IDENTITY: &[u8] = b"the log of a fuzzer";
const SALT: [u8; 16] = *b"a fuzzer's salt.";
const OPTIONS: WalOptions = WalOptions { segment_bytes: 8192, salt: SALT };
const PAGE: usize = 4096;
const ENTRIES: u64 = 60;

/// A log of a few segments, and the names of their files.
static LOG: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let fs = SimFs::new();
    let mut log = Wal::create(fs.clone(), Path::new(DIR), IDENTITY, LogPosition::default(), OPTIONS).unwrap();
    for index in 1..=ENTRIES {
        let payload = payload(index);
        log.append(Entry { index: LogIndex(index), term: Term(1 + index / 20), kind: 0, payload: &payload });
        if index % 3 == 0 {
            log.put_state(format!("state {index}").as_bytes());
            log.sync().unwrap();
        }
    }
    drop(log);
    (1..)
        .map(|sequence| format!("{DIR}/{sequence:016x}.wal"))
        .map_while(|name| {
            let bytes = std::panic::catch_unwind(|| fs.bytes(Path::new(&name))).ok()?;
            Some((name, bytes))
        })
        .take(2)
        .collect()
});

fn payload(index: u64) -> Vec<u8> {
    vec![index as u8; 20 + index as usize * 7]
}

fuzz_target!(|input: &[u8]| {
    let Some((mode, input)) = input.split_first() else { return };
    let (name, mut bytes) = LOG[usize::from(*mode >> 1) % LOG.len()].clone();
    if mode & 1 == 0 {
        patch(&mut bytes, input);
        open(&[(&name, bytes)], true);
    } else {
        let (name, bytes) = &LOG[0];
        open(&[(name, forged(&bytes[..PAGE], input))], false);
    }
});

/// Each four bytes of the input change one byte of the log, or cut it.
fn patch(bytes: &mut Vec<u8>, input: &[u8]) {
    for change in input.chunks_exact(4).take(16) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match change[2] {
            0xff => bytes.truncate(at),
            _ if bytes.is_empty() => return,
            _ => {
                let at = at % bytes.len();
                bytes[at] ^= change[3];
            }
        }
    }
}

/// Frames whose fields are the input's, under checksums that are right.
fn forged(page: &[u8], mut input: &[u8]) -> Vec<u8> {
    let of_log = crc32c::crc32c_append(crc32c::crc32c(IDENTITY), &SALT);
    let seed = crc32c::crc32c_append(of_log, &1u64.to_le_bytes());
    let mut bytes = page.to_vec();
    let mut previous = u32::from_le_bytes(page[PAGE - 4..].try_into().unwrap());
    while input.len() >= 8 {
        let (head, rest) = input.split_at(8);
        let length = usize::from(head[0]).min(rest.len());
        let (payload, rest) = rest.split_at(length);
        input = rest;
        let claimed = length as u32 ^ if head[1] & 1 == 1 { u32::from(head[7]) << 20 } else { 0 };
        let mut fixed = [0u8; 36];
        fixed[6] = head[2] % 5;
        fixed[7] = head[3];
        fixed[8..12].copy_from_slice(&claimed.to_le_bytes());
        let group = if head[1] & 2 == 2 { bytes.len() as u32 } else { PAGE as u32 + u32::from(head[4]) * 4 };
        fixed[12..16].copy_from_slice(&group.to_le_bytes());
        let chained = if head[1] & 4 == 4 { previous ^ 1 } else { previous };
        fixed[16..20].copy_from_slice(&chained.to_le_bytes());
        fixed[20..28].copy_from_slice(&u64::from(head[5]).to_le_bytes());
        fixed[28..36].copy_from_slice(&u64::from(head[6]).to_le_bytes());
        fixed[8..].iter_mut().zip(SALT.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        let check = (crc32c::crc32c_append(seed, &fixed[6..]) & 0xffff) as u16;
        fixed[4..6].copy_from_slice(&check.to_le_bytes());
        let mut frame = fixed.to_vec();
        frame.extend_from_slice(payload);
        frame.resize(36 + length.next_multiple_of(4), 0);
        previous = crc32c::crc32c_append(seed, &frame[4..]);
        frame[..4].copy_from_slice(&previous.to_le_bytes());
        bytes.extend(frame);
    }
    bytes
}

fn open(files: &[(&str, Vec<u8>)], is_true: bool) {
    let fs = SimFs::new();
    // Makes the directory and one segment, whose bytes are replaced.
    drop(Wal::create(fs.clone(), Path::new(DIR), IDENTITY, LogPosition::default(), OPTIONS).unwrap());
    for (name, bytes) in files {
        let path = format!("{DIR}/{:016x}.wal", 1);
        assert!(name.starts_with(DIR));
        fs.damage(Path::new(&path), |old| *old = bytes.clone());
    }
    let Ok((log, recovery)) = Wal::open(fs, Path::new(DIR), OPTIONS) else { return };
    let reader = log.reader();
    let mut next = recovery.start.index.0 + 1;
    while next <= recovery.last.index.0 {
        let Ok(entries) = reader.read(LogIndex(next), 1 << 20) else { return };
        assert!(!entries.is_empty(), "an entry that recovery counted is not there");
        for entry in &entries {
            assert_eq!(entry.index.0, next, "a gap");
            assert!(!is_true || entry.payload == payload(next), "entry {next} is not what was appended");
            next += 1;
        }
    }
}
