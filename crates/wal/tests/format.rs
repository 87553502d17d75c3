//! The bytes of version 1, frozen. If this test fails, logs of released versions can no longer be read: make a new
//! version instead of changing the expectation.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::{OPTIONS, append, at, dir, entries, open};
use wal::testing::SimFs;
use wal::{File, Fs, Wal};

const FIRST: &str = include_str!("format/0000000000000001.hex");
const SECOND: &str = include_str!("format/0000000000000002.hex");

/// A log of two segments with every kind of frame.
fn write(fs: &SimFs) {
    let mut wal = Wal::create(fs.clone(), dir(), b"identity", at(6, 2), OPTIONS).unwrap();
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

/// Lines of `offset: 16 bytes`, without lines of zeros.
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
fn the_bytes_written_today_are_those_of_version_1() {
    let fs = SimFs::new();
    write(&fs);
    assert_eq!(dump(&fs.bytes(&path(1))), FIRST);
    assert_eq!(dump(&fs.bytes(&path(2))), SECOND);
}

#[test]
fn the_bytes_of_version_1_can_be_read_today() {
    let fs = SimFs::new();
    fs.create_dir(dir()).unwrap();
    for (sequence, text) in [(1, FIRST), (2, SECOND)] {
        fs.create(&path(sequence)).unwrap().write_at(0, &undump(text)).unwrap();
    }
    let (wal, found) = open(&fs).unwrap();
    assert_eq!((found.start, found.last, found.torn_bytes), (at(6, 2), at(9, 0x0102_0304_0506_0708), 0));
    assert_eq!(found.identity, b"identity");
    assert_eq!(found.state.as_deref(), Some(&b"term 3, vote 1"[..]));
    let payloads: Vec<Vec<u8>> = entries(&wal).unwrap().into_iter().map(|entry| entry.payload).collect();
    assert_eq!(payloads, [&b"seven"[..], b"", b"nine"]);
}
