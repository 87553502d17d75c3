//! The stream in which a checkpoint travels to a follower: parts changed at will, in chunks whose checksums
//! are right.
//!
//! Laws: no panic; a stream that is taken to its end is the checkpoint that was sent.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mvcc::{LogPosition, MemoryBackend, StoreOptions, Staging};

const SENT: LogPosition = LogPosition::new(9, 2);
const HEADER: usize = 16;

/// The bodies of all chunks of a real export.
static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let options = StoreOptions { block_bytes: 512, ..StoreOptions::default() };
    let (mut writer, _store, mut maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
    for number in 0..60u8 {
        let mut request = writer.begin();
        request.put(&[b'k', number % 11], &[number; 40], 0);
        request.finish();
    }
    writer.set_item(b"member", Some(b"one"));
    writer.end_entry(SENT).unwrap();
    maintainer.persist().unwrap();
    let mut export = maintainer.export();
    let mut body = Vec::new();
    while let Some(chunk) = export.next(1 << 16).unwrap() {
        body.extend_from_slice(&chunk[HEADER..]);
    }
    body
});

fuzz_target!(|input: &[u8]| {
    let Some((mode, input)) = input.split_first() else { return };
    let body = if mode & 1 == 0 { patched(input) } else { input.to_vec() };
    let step = 1 + usize::from(mode >> 1) * 37;
    let options = StoreOptions { block_bytes: 512, ..StoreOptions::default() };
    let mut staging = Staging::begin(Box::new(MemoryBackend::new()), &options).unwrap();
    let (mut crc, mut number) = (0u32, 0u32);
    for part in body.chunks(step) {
        let mut chunk = b"mvx1".to_vec();
        chunk.extend(number.to_le_bytes());
        chunk.extend((part.len() as u32).to_le_bytes());
        crc = chained(crc, &chunk, part);
        chunk.extend(crc.to_le_bytes());
        chunk.extend(part);
        number += 1;
        if staging.add(&chunk).is_err() {
            return;
        }
    }
    if let Ok(staged) = staging.finish() {
        assert_eq!(staged.applied(), SENT, "another checkpoint than was sent");
        assert_eq!(staged.revision(), 61, "another checkpoint than was sent");
    }
});

/// Each five bytes of the input change, insert or remove something.
fn patched(input: &[u8]) -> Vec<u8> {
    let mut body = BODY.clone();
    for change in input.chunks_exact(5).take(12) {
        if body.is_empty() {
            return body;
        }
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % body.len();
        match change[2] % 4 {
            0 => body[at] ^= change[3],
            1 => body.truncate(at),
            2 => drop(body.drain(at..(at + usize::from(change[3])).min(body.len()))),
            _ => {
                let copy: Vec<u8> = body[at..].iter().copied().take(usize::from(change[3])).collect();
                let to = usize::from(change[4]) * body.len() / 256;
                drop(body.splice(to..to, copy));
            }
        }
    }
    body
}

/// As the stream's chunks are chained.
fn chained(before: u32, head: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&before.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, head), body)
}
