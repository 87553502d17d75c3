//! Golden bytes of versions 1 and 2. If this test fails, logs of released versions can no longer be
//! read: add a new version instead of changing the expectation. Version 1 has no salt; it is readable,
//! but no longer written.

use crate::common;
use std::fmt::Write as _;
use std::path::Path;

use crate::common::{OPTIONS, append, at, dir, entries, open};
use wal::testing::SimFs;
use wal::{File, Fs, Wal, WalOptions};

/// Segments 1 and 2 of the same log in each version.
const V1: [&str; 2] =
    [include_str!("format/v1/0000000000000001.hex"), include_str!("format/v1/0000000000000002.hex")];
const V2: [&str; 2] =
    [include_str!("format/v2/0000000000000001.hex"), include_str!("format/v2/0000000000000002.hex")];
const SALT: [u8; 16] = *b"0123456789abcdef";

/// Writes a log of two segments with every kind of frame.
fn write(fs: &SimFs) {
    let options = WalOptions { salt: SALT, ..OPTIONS };
    let mut wal = Wal::create(fs.clone(), dir(), b"identity", at(6, 2), options).unwrap();
    append(&mut wal, 7, 3, b"seven");
    wal.put_state(b"term 3, vote 1");
    wal.sync().unwrap();
    append(&mut wal, 8, 3, b"");
    wal.sync().unwrap();
    drop(wal);
    let (mut wal, _) = open(fs).unwrap();
    append(&mut wal, 9, 0x0102_0304_0506_0708, b"nine");
    wal.close().unwrap();
}

/// Formats lines of `offset: 16 bytes`, without lines of zeros.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0)) {
        write!(text, "{:04x}:", at * 16).unwrap();
        line.iter().for_each(|byte| write!(text, " {byte:02x}").unwrap());
        text.push('\n');
    }
    text
}

fn undump(text: &str) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    for line in text.lines() {
        let (offset, line) = line.split_once(": ").unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        for (at, byte) in line.split(' ').enumerate() {
            bytes[offset + at] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    bytes
}

fn path(sequence: u64) -> std::path::PathBuf {
    Path::new(common::DIR).join(format!("{sequence:016x}.wal"))
}

#[test]
fn the_bytes_written_today_are_those_of_version_2() {
    let fs = SimFs::new();
    write(&fs);
    for (sequence, text) in (1..).zip(V2) {
        assert_eq!(dump(&fs.bytes(&path(sequence))), text, "segment {sequence}");
    }
}

#[test]
fn the_bytes_of_both_versions_can_be_read_today() {
    for version in [V1, V2] {
        let fs = frozen(version);
        let (wal, found) = open(&fs).unwrap();
        assert_eq!((found.start, found.last, found.torn_bytes), (at(6, 2), at(9, 0x0102_0304_0506_0708), 0));
        assert_eq!(found.identity, b"identity");
        assert_eq!(found.state.as_deref(), Some(&b"term 3, vote 1"[..]));
        assert_eq!(payloads(&wal), [&b"seven"[..], b"", b"nine"]);
    }
}

#[test]
fn a_log_of_version_1_goes_on_in_segments_of_version_2() {
    let fs = frozen(V1);
    for (index, salt) in [(10, [1; 16]), (11, [2; 16])] {
        // Only the first salt is used; later ones are ignored.
        let (mut wal, _) = Wal::open(fs.clone(), dir(), WalOptions { salt, ..OPTIONS }).unwrap();
        append(&mut wal, index, 0x0102_0304_0506_0708, b"later");
        wal.close().unwrap();
    }
    let versions = [1, 2, 3, 4].map(|sequence| fs.bytes(&path(sequence))[8]);
    assert_eq!(versions, [1, 1, 2, 2]);
    let salts = [3, 4].map(|sequence| fs.bytes(&path(sequence))[1088..1104].to_vec());
    assert_eq!(salts, [[1; 16], [1; 16]]);
    let (wal, _) = open(&fs).unwrap();
    assert_eq!(payloads(&wal), [&b"seven"[..], b"", b"nine", b"later", b"later"]);
}

fn frozen(segments: [&str; 2]) -> SimFs {
    let fs = SimFs::new();
    fs.create_dir(dir()).unwrap();
    for (sequence, text) in (1..).zip(segments) {
        fs.create(&path(sequence)).unwrap().write_at(0, &undump(text)).unwrap();
    }
    fs
}

fn payloads(wal: &Wal<SimFs>) -> Vec<Vec<u8>> {
    entries(wal).unwrap().into_iter().map(|entry| entry.payload).collect()
}
