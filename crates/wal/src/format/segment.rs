//! A segment: one file of the log. Its first page identifies the log and the segment's position in it.
//!
//! ```text
//!  │ header page, 4 KiB │ state │ group │ group │ group │ zeros or bytes of a previous use ...
//!                       └ if one was ever put
//! ```
//!
//! * A segment gets its name only after its header and state are synced: a named segment is complete.
//! * A segment that continues the log records the end offset and final checksum of its predecessor.
//!   From then on that end is proven, and an earlier end of the predecessor is corruption, not a torn
//!   tail.
//! * A segment that is an origin restarts the log: all earlier segments are void.
//! * `base` is the position before the first entry of the segment. Entries above it in earlier segments
//!   are void.
//! * At least one zero follows each group, up to the end of the page. Other bytes there belong to an
//!   incomplete group.
//! * Groups start after the header page, which is therefore never rewritten.
//!
//! Steps to create a segment, and the state after a crash:
//!
//! | step | after a crash |
//! |---|---|
//! | create or reuse `spare.tmp`, write head and state | the old log; the contents of the spare are ignored |
//! | sync the file | the old log |
//! | rename to its name | the old log, or the new segment: it is complete and still empty |
//! | sync the directory | the new segment |
//!
//! Independent of the contents of frames.

use std::io;
use std::path::{Path, PathBuf};

use super::frame::{self, Header, SALT_BYTES, Salt, Seed, Type, array, to_usize};
use super::walk::CHUNK_BYTES;
use crate::types::IoContext;
use crate::{Error, File, Fs, LogIndex, LogPosition, Result, Term};

/// Size of a page-cache page and a file-system block. Groups are padded to it, so the kernel never has
/// to read a block in order to modify a part of it.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Maximum length of an identity. Two 64-bit ids and some randomness need far less.
pub(crate) const IDENTITY_BYTES_MAX: usize = 1024;
/// Unit by which small groups extend a file with zeros. Syncing blocks that were written before costs
/// about half as much as syncing new ones (docs/decisions/0002): one sync in 64 groups of 4 KiB pays
/// for all of them.
pub(crate) const AHEAD_BYTES: u64 = 256 << 10;
/// Name of a file that can be reused as a segment.
pub(crate) const SPARE: &str = "spare.tmp";

/// Magic number. It ends like a text line of Windows, so that a transfer that converts line endings is
/// detected immediately.
const MAGIC: [u8; 8] = *b"kv-wal\r\n";
/// Version of the first releases, without a salt. Readable; new segments are no longer written in it.
const VERSION_PLAIN: u32 = 1;
const VERSION_SALTED: u32 = 2;
/// Offset of the checksum, which covers the page up to itself.
const CRC_AT: usize = PAGE_BYTES - 4;
const IDENTITY_AT: usize = 64;
const SALT_AT: usize = IDENTITY_AT + IDENTITY_BYTES_MAX;

/// Relation of a segment to its predecessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descent {
    /// First segment of the log.
    Origin,
    /// Continues the previous segment, which has its last frame, with checksum `crc`, before `end`.
    Continues { end: u64, crc: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub sequence: u64,
    pub base: LogPosition,
    pub descent: Descent,
    /// Offset of the first group, after the state. The state was synced before the segment got its name.
    pub groups: u64,
    pub identity: Vec<u8>,
    /// `None` in a segment of version 1.
    pub salt: Option<Salt>,
}

impl SegmentHead {
    pub fn seed(&self) -> Seed {
        seed(&self.identity, self.salt.as_ref(), self.sequence)
    }
}

/// Returns the seed of the frames in a segment. Seeds are unique within a log: a CRC distinguishes all
/// inputs that differ in 32 adjacent bits only, and the sequence comes last.
pub(crate) fn seed(identity: &[u8], salt: Option<&Salt>, sequence: u64) -> Seed {
    let salt = salt.filter(|_| !base::mutant("unsalted"));
    let of_log = crc32c::crc32c_append(crc32c::crc32c(identity), salt.map_or(&[], |salt| &salt[..]));
    let sequence = if base::mutant("constant-seed") { 0 } else { sequence };
    let crc = crc32c::crc32c_append(of_log, &sequence.to_le_bytes());
    Seed { crc, mask: salt.copied().unwrap_or_default() }
}

/// Properties shared by all segments of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogProperties {
    pub identity: Vec<u8>,
    pub salt: Salt,
    /// First segment with the salt. Earlier segments predate salts.
    pub salted_from: u64,
}

impl LogProperties {
    /// Builds the lineage of a log; `salt` includes the first salted segment.
    pub fn of(identity: Vec<u8>, salt: Option<(Salt, u64)>) -> LogProperties {
        let (salt, salted_from) = salt.unwrap_or((Salt::default(), u64::MAX));
        LogProperties { identity, salt, salted_from }
    }

    pub fn seed(&self, sequence: u64) -> Seed {
        let salt = Some(&self.salt).filter(|_| sequence >= self.salted_from);
        seed(&self.identity, salt, sequence)
    }
}

/// Returns the path of a segment. Sequences have a fixed width, so names sort in sequence order.
pub(crate) fn path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:016x}.wal"))
}

/// Parses the sequence from the name of a segment; `None` for other files.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let sequence = u64::from_str_radix(digits, 16).ok()?;
    (name == format!("{sequence:016x}.wal")).then_some(sequence)
}

pub(crate) fn open<F: Fs>(fs: &F, path: &Path) -> Result<(F::File, u64)> {
    let file = fs.open(path).attempt("open log segment", path)?;
    let bytes = file.len().attempt("read the length of", path)?;
    Ok((file, bytes))
}

impl SegmentHead {
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        assert!(self.identity.len() <= IDENTITY_BYTES_MAX, "the identity is too long");
        let (origin, end, crc) = match self.descent {
            Descent::Origin => (1u32, 0, 0),
            Descent::Continues { end, crc } => (0, end, crc),
        };
        let mut page = [0; PAGE_BYTES];
        page[0..8].copy_from_slice(&MAGIC);
        let version = if self.salt.is_some() { VERSION_SALTED } else { VERSION_PLAIN };
        page[8..12].copy_from_slice(&version.to_le_bytes());
        page[12..16].copy_from_slice(&origin.to_le_bytes());
        page[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        page[24..32].copy_from_slice(&self.base.index.0.to_le_bytes());
        page[32..40].copy_from_slice(&self.base.term.0.to_le_bytes());
        page[40..48].copy_from_slice(&end.to_le_bytes());
        page[48..52].copy_from_slice(&crc.to_le_bytes());
        let length = u32::try_from(self.identity.len()).expect("an identity is at most 1 KiB");
        page[52..56].copy_from_slice(&length.to_le_bytes());
        page[56..64].copy_from_slice(&self.groups.to_le_bytes());
        page[IDENTITY_AT..][..self.identity.len()].copy_from_slice(&self.identity);
        page[SALT_AT..][..SALT_BYTES].copy_from_slice(&self.salt.unwrap_or_default());
        // Checksum the whole page, zeros included, so that any changed byte is detected.
        let checksum = crc32c::crc32c(&page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    /// Reads the header of segment `sequence`. A header that does not verify is always corruption: it was
    /// synced before the segment got its name, and the page is never rewritten.
    pub fn read<F: File>(file: &F, path: &Path, sequence: u64) -> Result<SegmentHead> {
        let mut page = [0; PAGE_BYTES];
        let filled = file.read_at(0, &mut page).attempt("read the header of log segment", path)?;
        let corrupt = |reason| Error::Corrupt { segment: sequence, offset: 0, reason };
        if filled < PAGE_BYTES {
            return Err(corrupt("the header page is truncated"));
        }
        let head = SegmentHead::decode(&page).map_err(corrupt)?;
        if head.sequence != sequence {
            return Err(corrupt("the header belongs to another segment"));
        }
        Ok(head)
    }

    /// Decodes a header. The checksum is verified before the version is used; all future versions must keep
    /// magic, version and checksum at their offsets.
    fn decode(page: &[u8; PAGE_BYTES]) -> std::result::Result<SegmentHead, &'static str> {
        if page[..8] != MAGIC {
            return Err("not a log segment");
        }
        if u32::from_le_bytes(array(page, CRC_AT)) != crc32c::crc32c(&page[..CRC_AT]) {
            return Err("header checksum mismatch");
        }
        let salt = match u32::from_le_bytes(array(page, 8)) {
            VERSION_PLAIN => None,
            VERSION_SALTED => Some(array(page, SALT_AT)),
            _ => return Err("unknown format version"),
        };
        let descent = match u32::from_le_bytes(array(page, 12)) {
            0 => Descent::Continues {
                end: u64::from_le_bytes(array(page, 40)),
                crc: u32::from_le_bytes(array(page, 48)),
            },
            1 => Descent::Origin,
            _ => return Err("unknown descent in the header"),
        };
        let length = u32::from_le_bytes(array(page, 52)) as usize;
        if length > IDENTITY_BYTES_MAX {
            return Err("identity length above the maximum");
        }
        Ok(SegmentHead {
            sequence: u64::from_le_bytes(array(page, 16)),
            base: LogPosition {
                index: LogIndex(u64::from_le_bytes(array(page, 24))),
                term: Term(u64::from_le_bytes(array(page, 32))),
            },
            descent,
            groups: u64::from_le_bytes(array(page, 56)),
            identity: page[IDENTITY_AT..][..length].to_vec(),
            salt,
        })
    }
}

/// The segment being written. The next group starts at `end`; bytes after it are invalid.
#[derive(Debug)]
pub(crate) struct Tail<F> {
    pub file: F,
    pub path: PathBuf,
    pub sequence: u64,
    pub base: LogPosition,
    pub seed: Seed,
    pub end: u64,
    pub crc: u32,
    /// Length of the file. All blocks below it were written before, in this or a previous use of the file.
    pub written: u64,
}

impl<F: File> Tail<F> {
    /// Writes and syncs `bytes`: whole frames, the last one with checksum `crc`.
    ///
    /// `bytes` is padded with zeros to a page or, if the file must grow, to a multiple of `step` within the
    /// segment.
    pub fn write(&mut self, bytes: &mut Vec<u8>, crc: u32, step: u64, segment_bytes: u64) -> io::Result<()> {
        assert!(
            !bytes.is_empty() && bytes.len().is_multiple_of(frame::ALIGNMENT),
            "a group is made of whole frames"
        );
        assert!(self.end >= PAGE_BYTES as u64, "a group would overwrite the header page");
        let end = self.end + bytes.len() as u64;
        let padded = padded_end(end, self.written, step, segment_bytes);
        if padded > self.written || !base::mutant("no-zero-after-group") {
            bytes.resize(to_usize(padded - self.end), 0);
        }
        assert!(
            padded.is_multiple_of(PAGE_BYTES as u64) && padded >= end,
            "a write ends with a page, after its frames"
        );
        if padded > self.written {
            write_by_page(&self.file, self.end, bytes)?;
        } else {
            self.file.write_at(self.end, bytes)?;
        }
        if !base::mutant("unsynced-groups") {
            self.file.sync_data()?;
        }
        self.written = self.written.max(padded);
        self.end = end;
        self.crc = crc;
        Ok(())
    }

    /// Rewrites and syncs the bytes from `group` to the end. A sync without the write is not sufficient: if
    /// an earlier sync failed, the kernel may consider pages clean that never reached the disk.
    pub fn renew(&self, group: u64) -> io::Result<()> {
        if base::mutant("unrenewed-group") {
            return Ok(());
        }
        assert!(group >= PAGE_BYTES as u64, "the header page is never written again");
        assert!(group <= self.end, "the last group begins within the log");
        let mut offset = group;
        while offset < self.end {
            let mut bytes = vec![0; to_usize((self.end - offset).min(CHUNK_BYTES as u64))];
            let filled = self.file.read_at(offset, &mut bytes)?;
            if filled < bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.file.write_at(offset, &bytes)?;
            offset += bytes.len() as u64;
        }
        self.file.sync_data()
    }
}

/// Writes new blocks page by page. One large write would enter the page cache as a large folio, and a
/// kernel with one dirty flag per folio then rewrites all of it for every group that touches a part:
/// 256 KiB per sync instead of 4.
fn write_by_page<F: File>(file: &F, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let first = PAGE_BYTES - to_usize(offset % PAGE_BYTES as u64);
    let (first, rest) = bytes.split_at(first.min(bytes.len()));
    file.write_at(offset, first)?;
    let mut at = offset + first.len() as u64;
    for page in rest.chunks(PAGE_BYTES) {
        file.write_at(at, page)?;
        at += page.len() as u64;
    }
    Ok(())
}

/// Returns the end of the page that contains the byte at `offset`.
pub(crate) fn page_end(offset: u64) -> u64 {
    (offset + 1).next_multiple_of(PAGE_BYTES as u64)
}

/// Returns the padded end of a write that ends at `end`, in a file of `written` bytes that grows by
/// `step`.
///
/// Every group is followed by at least one zero, up to the end of a page. If recovery finds anything
/// else there, it knows that a group was started, even if none of its frames is readable.
fn padded_end(end: u64, written: u64, step: u64, segment_bytes: u64) -> u64 {
    let page = page_end(end);
    assert!(page > end, "a zero after every group");
    if page <= written {
        return page;
    }
    // Stay within the segment unless the frames themselves exceed it.
    (end + 1).next_multiple_of(step).min(segment_bytes.next_multiple_of(PAGE_BYTES as u64)).max(page)
}

pub(crate) struct Birth<'a> {
    pub sequence: u64,
    pub base: LogPosition,
    pub descent: Descent,
    pub identity: &'a [u8],
    pub salt: Salt,
    pub state: Option<&'a [u8]>,
}

impl Birth<'_> {
    /// Returns the header page and state, the checksum of the last of them, and the seed of subsequent
    /// frames.
    fn encode(&self) -> (Vec<u8>, u32, Seed) {
        let Birth { sequence, base, descent, identity, salt, state } = *self;
        let mut groups = PAGE_BYTES as u64;
        groups += state.map_or(0, |state| frame::bytes(state.len()) as u64);
        let identity = identity.to_vec();
        let head = SegmentHead { sequence, base, descent, groups, identity, salt: Some(salt) };
        let (mut bytes, seed) = (head.encode().to_vec(), head.seed());
        let mut crc = u32::from_le_bytes(array(&bytes, CRC_AT));
        if let Some(state) = state {
            let header = Header {
                type_: Type::State,
                kind: 0,
                length: state.len(),
                group: PAGE_BYTES as u32,
                previous: crc,
                position: LogPosition::default(),
            };
            crc = frame::encode(&mut bytes, &seed, &header, state);
        }
        assert_eq!(bytes.len() as u64, groups, "the header says where the groups begin");
        (bytes, crc, seed)
    }
}

/// Creates a segment from the spare file or a new file. It is durable, including its name, on return;
/// before that it is invisible to recovery.
pub(crate) fn begin<F: Fs>(
    fs: &F,
    dir: &Path,
    birth: &Birth<'_>,
    spare: Spare,
    segment_bytes: u64,
) -> Result<Tail<F::File>> {
    let spare_path = dir.join(SPARE);
    let file = match spare {
        Spare::Absent => fs.create(&spare_path).attempt("create", &spare_path)?,
        Spare::Present => fs.open(&spare_path).attempt("open", &spare_path)?,
    };
    let written = file.len().attempt("read the length of", &spare_path)?;
    let (mut bytes, crc, seed) = birth.encode();
    let end = bytes.len() as u64;
    let padded = padded_end(end, written, AHEAD_BYTES, segment_bytes);
    bytes.resize(to_usize(padded), 0);
    write_by_page(&file, 0, &bytes).attempt("write the head of log segment", &spare_path)?;
    file.sync_data().attempt("sync the head of log segment", &spare_path)?;

    let Birth { sequence, base, .. } = *birth;
    let path = path(dir, sequence);
    fs.rename(&spare_path, &path).attempt("name log segment", &path)?;
    // Sync the name as well: a power failure may lose the name of a synced file.
    if !base::mutant("unsynced-names") {
        fs.sync_dir(dir).attempt("sync directory", dir)?;
    }
    let written = written.max(padded);
    Ok(Tail { file, path, sequence, base, seed, end, crc, written })
}

/// Presence of a reusable file named [`SPARE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    Absent,
    Present,
}

/// Returns the checksum of an encoded header: the first link of the segment's chain.
pub(crate) fn head_crc(head: &SegmentHead) -> u32 {
    u32::from_le_bytes(array(&head.encode(), CRC_AT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> SegmentHead {
        SegmentHead {
            sequence: 0x0123_4567_89ab_cdef,
            base: LogPosition::new(77, 8),
            descent: Descent::Continues { end: 5000, crc: 0xfeed },
            groups: 4200,
            identity: b"who".to_vec(),
            salt: Some([0xa5; SALT_BYTES]),
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for descent in [Descent::Origin, Descent::Continues { end: 5000, crc: 0xfeed }] {
            for identity in [vec![], vec![7; 3], vec![9; IDENTITY_BYTES_MAX]] {
                for salt in [None, Some([3; SALT_BYTES])] {
                    let head = SegmentHead { descent, identity: identity.clone(), salt, ..head() };
                    assert_eq!(SegmentHead::decode(&head.encode()), Ok(head));
                }
            }
        }
    }

    #[test]
    fn every_flipped_byte_of_the_header_page_is_noticed() {
        let page = head().encode();
        for at in 0..PAGE_BYTES {
            let mut damaged = page;
            damaged[at] ^= 0x10;
            assert!(SegmentHead::decode(&damaged).is_err(), "byte {at}");
        }
    }

    /// Builds a page with a valid checksum and an out-of-range field.
    fn forged(at: usize, bytes: &[u8]) -> [u8; PAGE_BYTES] {
        let mut page = head().encode();
        page[at..][..bytes.len()].copy_from_slice(bytes);
        let checksum = crc32c::crc32c(&page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    #[test]
    fn an_honest_header_with_a_strange_field_is_refused() {
        for (at, bytes, flaw) in [
            (0, &b"KV"[..], "not a log segment"),
            (8, &[3, 0, 0, 0], "unknown format version"),
            (12, &[2, 0, 0, 0], "unknown descent in the header"),
            (52, &[1, 4, 0, 0], "identity length above the maximum"),
        ] {
            assert_eq!(SegmentHead::decode(&forged(at, bytes)), Err(flaw));
        }
    }

    #[test]
    fn names_of_segments_are_recognised_and_no_others() {
        let name = path(Path::new("/d"), 0xab);
        assert_eq!(name, Path::new("/d/00000000000000ab.wal"));
        assert_eq!(parse_name("00000000000000ab.wal"), Some(0xab));
        for other in ["ab.wal", "00000000000000AB.wal", "+0000000000000ab.wal", "00000000000000ab", SPARE, ""]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn segments_of_one_log_never_share_a_seed() {
        for salt in [None, Some(&[7; SALT_BYTES])] {
            let seeds: std::collections::HashSet<u32> =
                (0..10_000).map(|sequence| seed(b"log", salt, sequence).crc).collect();
            assert_eq!(seeds.len(), 10_000);
            assert_ne!(seed(b"log", salt, 1), seed(b"lag", salt, 1));
        }
        assert_ne!(seed(b"log", None, 1).crc, seed(b"log", Some(&[7; SALT_BYTES]), 1).crc);
    }

    #[test]
    fn writes_end_with_a_page_and_grow_the_file_in_steps() {
        let (segment, step) = (64 << 20, AHEAD_BYTES);
        for (end, written, padded) in [
            (4097, 0, step),                    // new blocks: the whole step
            (4097, step, 8192),                 // existing blocks: the page
            (8191, step, 8192),                 // one zero after it
            (8192, step, 12288),                // no space for a zero: another page
            (step - 4, step, step),             // just fits
            (step, step, 2 * step),             // the next step
            (segment, segment, segment + 4096), // the end of the segment
            (segment - 5, segment - step, segment),
            (segment + 5, segment, segment + 4096), // a group may pass the end, its padding not
        ] {
            assert_eq!(padded_end(end, written, step, segment), padded, "end {end}, written {written}");
        }
        assert_eq!(padded_end(5000, 0, step, 8192), 8192, "small segments stay small");
        assert_eq!(padded_end(50_000, 40_960, PAGE_BYTES as u64, segment), 53_248, "a page at a time");
    }
}
