//! Inspections of intact and corrupt logs: valid frames are shown, damage is reported, and nothing is
//! written.

use crate::common::{append, at, copy, create, dir, open, payload, segment};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use wal::testing::{SimFile, SimFs};
use wal::{
    File, Finding, FrameContent, Fs, Inspection, LogIndex, LogPosition, ReadOnlyFs, RealFs, Wal, WalOptions,
    inspect,
};

/// Formats each finding as one line.
fn lines(fs: &SimFs) -> (Vec<String>, Inspection) {
    let mut lines = Vec::new();
    let inspection = inspect(fs, dir(), &mut |finding| lines.push(line(&finding))).unwrap();
    (lines, inspection)
}

fn line(finding: &Finding<'_>) -> String {
    match finding {
        Finding::Segment(found) => format!(
            "segment {} base {:?}{}{}",
            found.sequence,
            found.base.map(|base| base.index.0),
            if found.is_origin { " origin" } else { "" },
            if found.is_void { " void" } else { "" }
        ),
        Finding::Frame(found) => {
            let what = match found.content {
                FrameContent::Entry { position, payload, .. } => {
                    format!("entry {}/{} {}", position.index, position.term, payload.len())
                }
                FrameContent::State(state) => format!("state {}", state.len()),
                FrameContent::Mark => "mark".into(),
            };
            format!("{} {what}{}", found.offset, if found.is_chained { "" } else { " loose" })
        }
        Finding::Damage { offset, bytes, reason, .. } => format!("{offset} damage {bytes}: {reason}"),
        Finding::Torn { offset, bytes, .. } => format!("{offset} torn {bytes}"),
    }
}

fn log() -> SimFs {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    append(&mut wal, 1, 1, b"first");
    wal.put_state(b"vote");
    wal.sync().unwrap();
    append(&mut wal, 2, 1, &payload(2, 1, 300));
    wal.sync().unwrap();
    append(&mut wal, 2, 2, b"instead");
    wal.sync().unwrap();
    fs
}

#[test]
fn a_sound_log_is_shown_frame_by_frame() {
    let (lines, inspection) = lines(&log());
    assert_eq!(
        lines,
        [
            "segment 1 base Some(0) origin",
            "4096 entry 1/1 5",
            "4140 state 4",
            "4180 entry 2/1 300",
            "4516 entry 2/2 7"
        ]
    );
    assert_eq!((inspection.segments, inspection.frames, inspection.damages), (1, 4, 0));
    let recovery = inspection.opens.unwrap();
    assert_eq!((recovery.last, recovery.state.as_deref()), (at(2, 2), Some(&b"vote"[..])));
}

#[test]
fn all_frames_behind_damage_are_shown_and_the_hole_is_measured() {
    let fs = log();
    fs.damage(&segment(1), |bytes| bytes[4190] ^= 1);
    let (lines, inspection) = lines(&fs);
    assert_eq!(
        lines[1..],
        [
            "4096 entry 1/1 5",
            "4140 state 4",
            "4180 damage 336: corrupt frame header",
            "4516 entry 2/2 7 loose"
        ]
    );
    assert_eq!(inspection.damages, 1);
    let refused = inspection.opens.unwrap_err().to_string();
    assert_eq!(refused, "log segment 0000000000000001 is corrupt at offset 4180: corrupt frame header");
}

#[test]
fn a_torn_tail_is_no_damage() {
    let fs = log();
    fs.damage(&segment(1), |bytes| bytes[4516 + 40] ^= 1);
    let (lines, inspection) = lines(&fs);
    assert_eq!(lines.last().unwrap(), "4516 torn 43");
    assert_eq!(inspection.damages, 0);
    assert_eq!(inspection.opens.unwrap().torn_bytes, 43);
}

#[test]
fn a_damaged_head_hides_no_frames() {
    let fs = log();
    let (mut wal, _) = open(&fs).unwrap(); // A second segment, which records the identity.
    append(&mut wal, 3, 2, b"third");
    wal.close().unwrap();
    fs.damage(&segment(1), |bytes| bytes[20] ^= 1);
    let (lines, inspection) = lines(&fs);
    assert_eq!(lines[..2], ["segment 1 base None", "0 damage 4096: header checksum mismatch"]);
    assert_eq!(inspection.frames, 4 + 1 + 2, "all of the first, the repeated state, an entry, a mark");
    assert!(inspection.opens.is_err());
}

#[test]
fn missing_and_short_segments_are_named() {
    let fs = log();
    for term in 3..6 {
        let (mut wal, _) = open(&fs).unwrap();
        append(&mut wal, term, term, b"more");
        wal.close().unwrap();
    }
    fs.damage(&segment(1), |bytes| bytes.truncate(4516 + 3));
    fs.remove(&segment(3)).unwrap();
    let (lines, inspection) = lines(&fs);
    assert!(lines.contains(&"4519 damage 41: the segment is cut short".into()), "{lines:#?}");
    assert!(lines.contains(&"0 damage 0: the segment is missing".into()), "{lines:#?}");
    assert!(lines.contains(&"segment 4 base Some(4)".into()), "{lines:#?}");
    assert!(inspection.opens.is_err() && inspection.damages == 3, "{lines:#?}");
}

#[test]
fn what_lies_before_an_origin_is_void() {
    let fs = log();
    let (mut wal, _) = open(&fs).unwrap();
    // A restart with an interrupted cleanup: the new origin and the old log are both present.
    let before = copy(&fs);
    wal.restart_at(at(40, 5), b"anew").unwrap();
    let newest = fs.bytes(&segment(3));
    let file = before.create(&segment(3)).unwrap();
    wal::File::write_at(&file, 0, &newest).unwrap();
    let (lines, inspection) = lines(&before);
    assert_eq!(lines[0], "segment 1 base Some(0) origin void");
    assert_eq!(lines[lines.len() - 2..], ["segment 3 base Some(40) origin", "4096 state 4"]);
    assert_eq!(inspection.opens.unwrap().start, at(40, 5));
}

#[test]
fn no_single_flipped_byte_escapes_an_inspection_or_stops_it() {
    let fs = log();
    let (mut wal, _) = open(&fs).unwrap();
    append(&mut wal, 3, 2, b"third");
    wal.close().unwrap();
    let (whole, sound) = lines(&fs);
    assert_eq!(sound.damages, 0);
    let end = 4516 + 36 + 8;
    for offset in (0..4096).step_by(61).chain(4096..end) {
        let damaged = copy(&fs);
        damaged.damage(&segment(1), |bytes| bytes[offset] ^= 0x10);
        let (found, inspection) = lines(&damaged);
        assert!(inspection.opens.is_err() && inspection.damages > 0, "offset {offset}: {found:?}");
        let lost = whole.iter().filter(|line| !found.iter().any(|f| f.starts_with(line.as_str()))).count();
        assert!(lost <= 1, "offset {offset}: one frame or one head is lost, not {lost}: {found:?}");
    }
}

#[test]
fn an_inspection_of_real_files_writes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (dir, options) = (home.path().join("wal"), WalOptions { segment_bytes: 8192, salt: [7; 16] });
    let mut wal = Wal::create(RealFs, &dir, b"id", LogPosition::default(), options).unwrap();
    append(&mut wal, 1, 1, b"first");
    wal.sync().unwrap();
    drop(wal);
    let names = RealFs.list(&dir).unwrap();
    let mut frames = 0;
    let inspection = inspect(&ReadOnlyFs, &dir, &mut |_| frames += 1).unwrap();
    assert_eq!((inspection.frames, frames), (1, 2));
    assert_eq!(RealFs.list(&dir).unwrap(), names);
    for refused in [
        ReadOnlyFs.create(&dir.join("new")).map(drop),
        ReadOnlyFs.remove(&dir.join(&names[0])),
        ReadOnlyFs.rename(&dir.join(&names[0]), &dir.join("other")),
        ReadOnlyFs.sync_dir(&dir),
        ReadOnlyFs.create_dir(&dir.join("new")),
        Wal::open(ReadOnlyFs, &dir, options).map(drop).map_err(std::io::Error::other),
    ] {
        assert!(refused.is_err());
    }
    assert!(matches!(inspect(&ReadOnlyFs, home.path(), &mut |_| ()), Err(wal::Error::Missing { .. })));
}

/// A log that is modified during the inspection. After `quiet_reads` reads, each read is followed by a
/// group, and periodically by a release of the oldest segments.
#[derive(Clone)]
struct LiveFs {
    fs: SimFs,
    writer: Arc<Mutex<Writing>>,
}

struct Writing {
    wal: Wal<SimFs>,
    quiet_reads: usize,
    groups_left: usize,
    releases_every: usize,
}

struct LiveFile {
    file: SimFile,
    writer: Arc<Mutex<Writing>>,
}

impl Writing {
    fn write(&mut self) {
        if self.quiet_reads > 0 {
            self.quiet_reads -= 1;
        } else if self.groups_left > 0 {
            self.groups_left -= 1;
            let next = self.wal.last().index.next();
            append(&mut self.wal, next.0, 2, &payload(next.0, 2, 100 + self.groups_left * 37 % 900));
            self.wal.sync().unwrap();
            if self.groups_left.is_multiple_of(self.releases_every) {
                self.wal.release_before(LogIndex(next.0 - 2)).unwrap();
            }
        }
    }
}

impl File for LiveFile {
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        unreachable!("an inspection writes nothing")
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(offset, buffer);
        self.writer.lock().unwrap().write();
        read
    }

    fn sync_data(&self) -> io::Result<()> {
        unreachable!("an inspection syncs nothing")
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

impl Fs for LiveFs {
    type File = LiveFile;

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        unreachable!("an inspection makes nothing")
    }

    fn create(&self, _: &Path) -> io::Result<LiveFile> {
        unreachable!("an inspection makes nothing")
    }

    fn open(&self, path: &Path) -> io::Result<LiveFile> {
        self.writer.lock().unwrap().write();
        Ok(LiveFile { file: self.fs.open(path)?, writer: Arc::clone(&self.writer) })
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        unreachable!("an inspection renames nothing")
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        unreachable!("an inspection removes nothing")
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        unreachable!("an inspection syncs nothing")
    }
}

#[test]
fn a_log_that_is_written_to_meanwhile_is_not_damaged() {
    for releases_every in [usize::MAX, 3, 7] {
        for quiet_reads in 0..40 {
            let fs = SimFs::new();
            let mut wal = create(&fs);
            for index in 1..=30 {
                append(&mut wal, index, 1, &payload(index, 1, 500));
                wal.sync().unwrap();
            }
            let writing = Writing { wal, quiet_reads, groups_left: 60, releases_every };
            let live = LiveFs { fs, writer: Arc::new(Mutex::new(writing)) };
            let mut findings = Vec::new();
            let inspection = inspect(&live, dir(), &mut |finding| findings.push(line(&finding))).unwrap();
            let name = format!("{quiet_reads} reads, releases every {releases_every}: {findings:#?}");
            assert_eq!(inspection.damages, 0, "{name}");
            assert!(inspection.opens.is_ok(), "{:?}, {name}", inspection.opens);
        }
    }
}
