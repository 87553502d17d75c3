//! Read-only inspection of a store, however corrupt it is.
//!
//!   Inspector::open ─▶ faults · marks · items · files ─▶ blocks of each file ─▶ records of a block
//!
//! * The store's directory is not modified. The catalogue is copied first, because sled writes whenever
//!   it opens.
//! * Everything readable is returned. Everything else is a fault with file, offset and reason.
//! * Blocks are found through the catalogue and by scanning the files, so a store without a catalogue
//!   still shows its records.
//! * Memory: the catalogue, and one block at a time.
//!
//! A store in use may look corrupt where it is being written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::backend::{Backend, SEQUENCE_FILE, SledBackend, copy_regular, open_regular, refused};
use crate::block::{BlockIdentity, HEADER_BYTES, RecordBody, check_header_bytes, codec};
use crate::checkpoint::{BlockEntry, CatalogueEntry, Digest, Marks, catalogue, crc_of};
use crate::error::{Error, Result};
use crate::types::{LogPosition, Revision};

/// Size of the reads that search for frames.
const SEARCH_BYTES: u64 = 1 << 20;

/// Location and description of corruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub file: String,
    pub offset: u64,
    pub what: String,
}

/// The marks of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarksSeen {
    pub applied: LogPosition,
    pub revision: i64,
    /// Minimum readable revision; -1: no limit.
    pub compact_revision: i64,
    /// Latest physically completed compaction; -1: none.
    pub compacted: i64,
    /// Expected number of blocks and items in the catalogue.
    pub blocks: u64,
    pub items: u64,
}

/// A block file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSeen {
    pub number: u64,
    pub path: PathBuf,
    pub bytes: u64,
    /// Fault of its header.
    pub fault: Option<&'static str>,
}

/// A block, or a range of bytes that is not a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSeen {
    pub file: PathBuf,
    pub offset: u64,
    pub stored_bytes: u64,
    /// Content according to the catalogue, or else the block's header. `None` if both are unreadable.
    pub content: Option<BlockContent>,
    /// True if the catalogue has an entry for it. Other blocks are not part of the store.
    pub is_named: bool,
    pub fault: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockContent {
    pub raw_bytes: u32,
    pub records: u32,
    /// Number of records listed as superseded.
    pub dead_records: u32,
    pub first: Revision,
    pub last: Revision,
}

/// A record of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSeen {
    pub revision: Revision,
    pub key: Bytes,
    /// `None` for a tombstone.
    pub put: Option<PutSeen>,
    /// True if the record is listed as superseded.
    pub is_dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutSeen {
    pub create_revision: i64,
    pub version: i64,
    pub lease: i64,
    pub value: Bytes,
}

/// Inspects a store.
pub struct Inspector {
    dir: PathBuf,
    marks: Option<MarksSeen>,
    items: BTreeMap<Bytes, Bytes>,
    /// Catalogue entries of blocks by file and offset.
    named: BTreeMap<(u64, u64), BlockEntry>,
    faults: Vec<Damage>,
}

impl Inspector {
    /// Opens the store in `dir`. `scratch` is an empty directory for a copy of the catalogue; it may be
    /// removed after this returns.
    ///
    /// Errors: `Io` if the directory does not exist or the copy fails. Corruption is reported as a fault.
    pub fn open(dir: &Path, scratch: &Path) -> Result<Self> {
        fs::metadata(dir).map_err(refused("look at", dir))?;
        let mut inspector = Inspector {
            dir: dir.to_path_buf(),
            marks: None,
            items: BTreeMap::new(),
            named: BTreeMap::new(),
            faults: Vec::new(),
        };
        // Opening sled appends to its log and may rewrite its snapshot, which could destroy evidence. Open a
        // copy.
        copy_files(&dir.join("catalogue"), &scratch.join("catalogue"))?;
        match SledBackend::open(scratch).and_then(|mut copy| copy.catalogue()) {
            Ok(entries) => {
                inspector.take_catalogue(&entries);
                // The sequence number is only informative for an intact catalogue.
                if inspector.faults.is_empty() {
                    inspector.check_sequence(scratch)?;
                }
            }
            Err(error) => inspector.catalogue_fault(error.to_string()),
        }
        Ok(inspector)
    }

    /// Reopens the copy with the sequence file, and reports lost catalogue updates as a fault.
    fn check_sequence(&mut self, scratch: &Path) -> Result<()> {
        let sequence = self.dir.join(SEQUENCE_FILE);
        match copy_regular(&sequence, &scratch.join(SEQUENCE_FILE)) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
            copied => copied?,
        }
        if let Err(error) = SledBackend::open(scratch) {
            self.catalogue_fault(error.to_string());
        }
        Ok(())
    }

    /// Returns the faults of the catalogue. Faults of files and blocks are returned with these.
    pub fn faults(&self) -> &[Damage] {
        &self.faults
    }

    /// Returns the marks; `None` if they are unreadable.
    pub fn marks(&self) -> Option<&MarksSeen> {
        self.marks.as_ref()
    }

    /// Returns the readable items in key order.
    pub fn items(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.items.iter()
    }

    /// Returns the block files that exist or that the catalogue refers to, in order.
    pub fn files(&self) -> Result<Vec<FileSeen>> {
        let mut files = BTreeMap::new();
        // Start with the files in the catalogue, to report missing ones. Existing files replace them.
        for &(number, _) in self.named.keys() {
            let path = self.block_path(number);
            let fault = Some("the file is missing");
            files.insert(number, FileSeen { number, path, bytes: 0, fault });
        }
        let dir = self.dir.join("blocks");
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(files.into_values().collect());
            }
            entries => entries.map_err(refused("list", &dir))?,
        };
        for entry in entries {
            let entry = entry.map_err(refused("list", &dir))?;
            let name = entry.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".blk"));
            let Some(number) = stem.and_then(|stem| stem.parse::<u64>().ok()) else { continue };
            let path = entry.path();
            let bytes = entry.metadata().map_err(refused("look at", &path))?.len();
            let file = open_regular(&path)?;
            let mut header = vec![0; bytes.min(HEADER_BYTES) as usize];
            file.read_exact_at(&mut header, 0).map_err(refused("read", &path))?;
            let fault = check_header_bytes(&header, number).err();
            files.insert(number, FileSeen { number, path, bytes, fault });
        }
        Ok(files.into_values().collect())
    }

    /// Returns the blocks of a file by offset, with verified checksums. Bytes between blocks and missing
    /// blocks are included, with their fault.
    pub fn blocks(&self, file: &FileSeen) -> Result<Vec<BlockSeen>> {
        let mut blocks = Vec::new();
        let mut at = HEADER_BYTES;
        // Every byte of the file belongs to exactly one result: a block, or a range without one.
        while at < file.bytes {
            let block = self.block_at(file, at)?;
            at = block.offset + block.stored_bytes;
            blocks.push(block);
        }
        // Blocks that the scan did not find: after the end of the file, or in a missing file.
        for (&(_, offset), entry) in self.named.range((file.number, 0)..=(file.number, u64::MAX)) {
            let seen = |block: &BlockSeen| block.offset == offset && block.is_named;
            if !blocks.iter().any(seen) {
                let fault = if file.bytes == 0 { "the file is missing" } else { "the file is cut" };
                blocks.push(named_block(file, offset, entry, Some(fault)));
            }
        }
        blocks.sort_by_key(|block| block.offset);
        Ok(blocks)
    }

    /// Returns the records of a block in revision order.
    ///
    /// Errors: `Corrupt` if it is corrupt, `Io` if it cannot be read.
    pub fn records(&self, block: &BlockSeen) -> Result<Vec<RecordSeen>> {
        let damaged =
            |what| Error::Corrupt { file: block.file.display().to_string(), offset: block.offset, what };
        let file = open_regular(&block.file)?;
        let mut stored = vec![0; usize::try_from(block.stored_bytes).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut stored, block.offset).map_err(refused("read", &block.file))?;
        // Use the header, because the catalogue may not have the block.
        let header = codec::check(&stored).map_err(damaged)?;
        let decoded = codec::load(&stored, header.identity).map_err(damaged)?;
        let number = block_number(&block.file);
        let entry = number.and_then(|number| self.named.get(&(number, block.offset)));
        let dead = entry.map(|entry| entry.dead.unpack()).unwrap_or_default();
        let raw = decoded.raw();
        let records = decoded.records().map(|record| RecordSeen {
            revision: record.revision,
            key: raw.slice_ref(record.key),
            put: match record.body {
                RecordBody::Tombstone => None,
                RecordBody::Put { create, version, lease, value } => {
                    let value = raw.slice_ref(value);
                    Some(PutSeen { create_revision: create, version, lease, value })
                }
            },
            is_dead: dead.binary_search(&record.revision).is_ok(),
        });
        Ok(records.collect())
    }

    /// Sorts the entries by kind, and checks the digests for missing ones. A corrupt entry is a fault;
    /// other entries are still used.
    fn take_catalogue(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) {
        let (mut blocks, mut items, mut marks) = (Digest::default(), Digest::default(), None);
        for (key, value) in entries {
            match catalogue::read(key, value) {
                Ok(CatalogueEntry::Marks(found)) => marks = Some(found),
                Ok(CatalogueEntry::Block(entry)) => {
                    blocks.add(crc_of(value));
                    self.named.insert((entry.file, entry.offset), entry);
                }
                Ok(CatalogueEntry::Item(key, value_seen)) => {
                    items.add(crc_of(value));
                    self.items.insert(key, value_seen);
                }
                Err(error) => self.catalogue_fault(format!("{error} (entry {})", key.escape_ascii())),
            }
        }
        match marks {
            // The digests detect that an entry is missing, or is from another checkpoint.
            Some(marks) if (marks.blocks, marks.items) != (blocks, items) => {
                self.catalogue_fault("entries are missing or from another checkpoint".to_owned());
            }
            Some(_) => {}
            None => self.catalogue_fault("the marks are missing".to_owned()),
        }
        self.marks = marks.map(|marks: Marks| MarksSeen {
            applied: marks.applied,
            revision: marks.revision,
            compact_revision: marks.compact_revision,
            compacted: marks.compacted,
            blocks: marks.blocks.count,
            items: marks.items.count,
        });
    }

    /// Adds a fault of the catalogue without an offset, since sled's offsets are meaningless to a reader.
    fn catalogue_fault(&mut self, what: String) {
        let file = self.dir.join("catalogue").display().to_string();
        self.faults.push(Damage { file, offset: 0, what });
    }

    fn block_path(&self, number: u64) -> PathBuf {
        self.dir.join("blocks").join(format!("{number:06}.blk"))
    }

    /// Returns the block, with or without an entry, or other bytes at offset `at`.
    fn block_at(&self, file: &FileSeen, at: u64) -> Result<BlockSeen> {
        if let Some(entry) = self.named.get(&(file.number, at)) {
            // Entries have checksums but may be from another store, so check their numbers.
            let end = at.saturating_add(u64::from(entry.bytes));
            if end > file.bytes {
                let cut = named_block(file, at, entry, Some("the file is cut"));
                return Ok(BlockSeen { stored_bytes: file.bytes - at, ..cut });
            }
            let stored = read(&file.path, at, u64::from(entry.bytes))?;
            // Decompressed and parsed, like at a start.
            let fault = codec::load(&stored, entry.identity).err();
            return Ok(named_block(file, at, entry, fault));
        }
        // Without an entry, use the length in the frame's header. Other bytes extend to the next block of the
        // catalogue.
        let next_named = self.named.range((file.number, at)..=(file.number, u64::MAX)).next();
        let end = next_named.map_or(file.bytes, |(&(_, offset), _)| offset.min(file.bytes));
        if let Some(block) = unnamed_block(file, at, end)? {
            return Ok(block);
        }
        let stretch = next_frame(file, at + 1, end)?;
        let (file, stored_bytes) = (file.path.clone(), stretch - at);
        let fault = Some("bytes that are no block");
        Ok(BlockSeen { file, offset: at, stored_bytes, content: None, is_named: false, fault })
    }
}

fn named_block(file: &FileSeen, offset: u64, entry: &BlockEntry, fault: Option<&'static str>) -> BlockSeen {
    BlockSeen {
        file: file.path.clone(),
        offset,
        stored_bytes: u64::from(entry.bytes),
        content: Some(content(entry.identity, entry.dead.len())),
        is_named: true,
        fault,
    }
}

/// Returns the intact frame at `at`, if it fits before `end`.
fn unnamed_block(file: &FileSeen, at: u64, end: u64) -> Result<Option<BlockSeen>> {
    let header_bytes = codec::HEADER_BYTES as u64;
    if at + header_bytes > end {
        return Ok(None);
    }
    let header = read(&file.path, at, header_bytes)?;
    let stored_bytes = match codec::claimed_bytes(&header) {
        Some(bytes) if at + bytes <= end => bytes,
        Some(_) | None => return Ok(None),
    };
    let stored = read(&file.path, at, stored_bytes)?;
    let Ok(header) = codec::check(&stored) else { return Ok(None) };
    let fault = codec::load(&stored, header.identity).err();
    let (file, content) = (file.path.clone(), Some(content(header.identity, 0)));
    Ok(Some(BlockSeen { file, offset: at, stored_bytes, content, is_named: false, fault }))
}

/// Returns the offset of the next intact frame without an entry, or `end`. Reads in windows, because
/// corruption may be as long as a file.
fn next_frame(file: &FileSeen, from: u64, end: u64) -> Result<u64> {
    let mut at = from;
    while at < end {
        let window = read(&file.path, at, (end - at).min(SEARCH_BYTES))?;
        let candidates = window.windows(codec::MAGIC_BYTES.len()).enumerate();
        for (offset, _) in candidates.filter(|(_, bytes)| *bytes == codec::MAGIC_BYTES) {
            let candidate = at + offset as u64;
            if unnamed_block(file, candidate, end)?.is_some() {
                return Ok(candidate);
            }
        }
        // Windows overlap, so that a magic number on their boundary is found.
        at = (at + SEARCH_BYTES).saturating_sub(codec::MAGIC_BYTES.len() as u64 - 1).max(at + 1);
    }
    Ok(end)
}

fn content(identity: BlockIdentity, dead_records: u32) -> BlockContent {
    let BlockIdentity { first, last, records, raw_bytes } = identity;
    BlockContent { raw_bytes, records, dead_records, first, last }
}

fn block_number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

fn read(path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut buffer, offset).map_err(refused("read", path))?;
    Ok(buffer)
}

/// Copies the files of a directory, if it exists. Subdirectories are skipped.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(refused("create", to))?;
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(refused("list", from))?,
    };
    for entry in entries {
        let entry = entry.map_err(refused("list", from))?;
        let path = entry.path();
        if !entry.file_type().map_err(refused("look at", &path))?.is_dir() {
            copy_regular(&path, &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
