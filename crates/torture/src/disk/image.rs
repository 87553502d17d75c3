//! A disk that tracks which changes were synced, so that a power loss can be simulated at any point.
//!
//! ```text
//!   write, truncate ─▶ unsynced changes of the file ──sync of the file───────▶ synced bytes
//!   create, rename, ─▶ unsynced changes of names ─────sync of the directory──▶ synced names
//!   remove, mkdir
//! ```
//!
//! * A completed sync makes durable the changes made before it started, and makes no other guarantee: the
//!   sync of a file does not persist its name, and `sync_file_range` persists no data.
//! * Unsynced changes may survive in any combination ([`Loss`]), and writes partially. Sectors that were not
//!   written do not change. A rename is a single change: it either happened or not.
//! * Without losses, the image equals the files of the process. This is checked for each recording, so the
//!   recorder cannot miss a kind of write.
//!
//! Independent of the contents of files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bytes::Bytes;

use super::loss::{ChangeLoss, Loss};
use super::recording::{DiskOperation, FileNumber};
use crate::failure::{Attempt, ExperimentError, Result};

type NameEntry = (Inode, String);
/// Permanent identity of a file or directory; unlike its number, never reused.
type Inode = usize;
type DirectoryNames = BTreeMap<NameEntry, Inode>;

const ROOT: Inode = 0;

#[derive(Clone)]
pub struct DiskImage {
    nodes: Vec<InodeState>,
    by_number: HashMap<FileNumber, Inode>,
    /// Names as the process sees them.
    names: DirectoryNames,
    synced_names: DirectoryNames,
    unsynced_names: Vec<(u64, NameChange)>,
    syncs: HashMap<u64, (Inode, u64)>,
    clock: u64,
}

#[derive(Clone, Default)]
struct InodeState {
    is_directory: bool,
    synced: Vec<u8>,
    unsynced: Vec<(u64, FileChange)>,
}

/// A change of a file's contents.
#[derive(Clone, Debug)]
enum FileChange {
    Write { offset: u64, data: Bytes },
    SetLength(u64),
    GrowTo(u64),
}

#[derive(Clone, Debug)]
struct NameChange {
    removes: Option<NameEntry>,
    inserts: Option<(NameEntry, Inode)>,
}

impl NameChange {
    fn apply(&self, names: &mut DirectoryNames) {
        if let Some(entry) = &self.removes {
            names.remove(entry);
        }
        if let Some((entry, node)) = &self.inserts {
            names.insert(entry.clone(), *node);
        }
    }

    fn entries(&self) -> impl Iterator<Item = &NameEntry> {
        self.removes.iter().chain(self.inserts.iter().map(|(entry, _)| entry))
    }

    fn concerns(&self, directory: Inode) -> bool {
        self.entries().any(|entry| entry.0 == directory)
    }
}

impl DiskImage {
    /// Returns an empty directory that is itself durable.
    pub fn new() -> DiskImage {
        DiskImage {
            nodes: vec![InodeState { is_directory: true, ..InodeState::default() }],
            by_number: HashMap::new(),
            names: DirectoryNames::new(),
            synced_names: DirectoryNames::new(),
            unsynced_names: Vec::new(),
            syncs: HashMap::new(),
            clock: 0,
        }
    }

    /// Reads the files below `root`; all of them count as synced.
    pub fn of(root: &Path) -> Result<DiskImage> {
        let mut disk = DiskImage::new();
        disk.read_directory(ROOT, root)?;
        disk.synced_names = disk.names.clone();
        Ok(disk)
    }

    fn read_directory(&mut self, directory: Inode, real: &Path) -> Result<()> {
        for entry in std::fs::read_dir(real).attempt("list", real)? {
            let entry = entry.attempt("list", real)?;
            let (path, inode) = (entry.path(), self.nodes.len());
            let is_directory = path.is_dir();
            let synced = match is_directory {
                true => Vec::new(),
                false => std::fs::read(&path).attempt("read", &path)?,
            };
            self.nodes.push(InodeState { is_directory, synced, unsynced: Vec::new() });
            self.names.insert((directory, entry.file_name().to_string_lossy().into_owned()), inode);
            if is_directory {
                self.read_directory(inode, &path)?;
            }
        }
        Ok(())
    }

    /// Applies an operation of the process.
    pub fn play(&mut self, operation: &DiskOperation) -> Result<()> {
        self.clock += 1;
        match operation {
            // Pending syncs were aborted with their process.
            DiskOperation::Start => self.syncs.clear(),
            DiskOperation::Failed => {}
            DiskOperation::Open { file, name } => {
                let node = self.find(name)?;
                self.by_number.insert(*file, node);
            }
            DiskOperation::Create { file, name } => self.make(*file, name, InodeState::default())?,
            DiskOperation::MakeDirectory { file, name } => {
                self.make(*file, name, InodeState { is_directory: true, ..InodeState::default() })?;
            }
            DiskOperation::Write { file, offset, data } => {
                self.change(*file, FileChange::Write { offset: *offset, data: data.clone() })?;
            }
            DiskOperation::Truncate { file, length } => self.change(*file, FileChange::SetLength(*length))?,
            DiskOperation::Allocate { file, end } => self.change(*file, FileChange::GrowTo(*end))?,
            DiskOperation::SyncBegin { file, number } => {
                let node = self.node(*file)?;
                self.syncs.insert(*number, (node, self.clock));
            }
            DiskOperation::SyncEnd { number } => self.synced(*number)?,
            DiskOperation::Rename { from, to } => {
                let (node, removes) = (self.find(from)?, self.entry(from)?);
                let inserts = Some((self.entry(to)?, node));
                self.rename(NameChange { removes: Some(removes), inserts });
            }
            DiskOperation::Remove { name } => {
                let removes = Some(self.entry(name)?);
                self.rename(NameChange { removes, inserts: None });
            }
        }
        Ok(())
    }

    fn make(&mut self, file: FileNumber, name: &str, node: InodeState) -> Result<()> {
        let inode = self.nodes.len();
        let inserts = Some((self.entry(name)?, inode));
        self.nodes.push(node);
        self.by_number.insert(file, inode);
        self.rename(NameChange { removes: None, inserts });
        Ok(())
    }

    fn rename(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push((self.clock, change));
    }

    fn change(&mut self, file: FileNumber, change: FileChange) -> Result<()> {
        let node = self.node(file)?;
        self.nodes[node].unsynced.push((self.clock, change));
        Ok(())
    }

    fn synced(&mut self, number: u64) -> Result<()> {
        let unknown = || ExperimentError::new(format!("sync {number} ended before it began"));
        let (inode, began) = self.syncs.remove(&number).ok_or_else(unknown)?;
        let node = &mut self.nodes[inode];
        if !node.is_directory {
            let safe = node.unsynced.partition_point(|(at, _)| *at < began);
            for (_, change) in node.unsynced.drain(..safe) {
                change.apply(&mut node.synced, &mut ChangeLoss::whole());
            }
            return Ok(());
        }
        let mut left: Vec<(u64, NameChange)> = Vec::new();
        for (at, change) in std::mem::take(&mut self.unsynced_names) {
            if at < began && change.concerns(inode) {
                // Overrides earlier changes of the same names in another directory.
                left.retain(|(_, earlier)| {
                    !earlier.entries().any(|entry| change.entries().any(|e| e == entry))
                });
                change.apply(&mut self.synced_names);
            } else {
                left.push((at, change));
            }
        }
        self.unsynced_names = left;
        Ok(())
    }

    /// Writes the files that survive a power loss at this point into the empty directory `into`.
    pub fn write_image(&self, into: &Path, loss: &mut Loss) -> Result<()> {
        let mut names = self.synced_names.clone();
        for (_, change) in &self.unsynced_names {
            if loss.keeps_name() {
                change.apply(&mut names);
            }
        }
        self.write_directory(ROOT, into, &names, loss)
    }

    fn write_directory(
        &self,
        directory: Inode,
        into: &Path,
        names: &DirectoryNames,
        loss: &mut Loss,
    ) -> Result<()> {
        let entries = names.range((directory, String::new())..(directory + 1, String::new()));
        for ((_, name), inode) in entries {
            let (path, node) = (into.join(name), &self.nodes[*inode]);
            if node.is_directory {
                std::fs::create_dir(&path).attempt("create", &path)?;
                self.write_directory(*inode, &path, names, loss)?;
            } else {
                std::fs::write(&path, node.left(loss)).attempt("write", &path)?;
            }
        }
        Ok(())
    }

    /// Compares the disk without losses with the real directory, and fails with the first difference.
    pub fn check_equals(&self, real: &Path) -> Result<()> {
        let mut loss = Loss::nothing();
        self.check_directory(ROOT, real, &mut loss)
    }

    fn check_directory(&self, directory: Inode, real: &Path, loss: &mut Loss) -> Result<()> {
        let entries = self.names.range((directory, String::new())..(directory + 1, String::new()));
        let ours: BTreeMap<&str, Inode> = entries.map(|((_, name), inode)| (name.as_str(), *inode)).collect();
        let mut theirs: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(real).attempt("list", real)? {
            theirs.push(entry.attempt("list", real)?.file_name().to_string_lossy().into_owned());
        }
        theirs.sort();
        if !theirs.iter().map(String::as_str).eq(ours.keys().copied()) {
            let (real, ours) = (real.display(), ours.keys());
            return Err(ExperimentError::new(format!("recorded {ours:?}, but {real} holds {theirs:?}")));
        }
        for (name, inode) in ours {
            let (path, node) = (real.join(name), &self.nodes[inode]);
            if node.is_directory {
                self.check_directory(inode, &path, loss)?;
            } else if std::fs::read(&path).attempt("read", &path)? != node.left(loss) {
                return Err(ExperimentError::new(format!(
                    "{} differs from what was recorded of it",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    fn node(&self, file: FileNumber) -> Result<Inode> {
        let unknown = || ExperimentError::new(format!("file {file} was used but never opened"));
        self.by_number.get(&file).copied().ok_or_else(unknown)
    }

    fn find(&self, name: &str) -> Result<Inode> {
        if name.is_empty() {
            return Ok(ROOT);
        }
        let unknown = || ExperimentError::new(format!("\"{name}\" was used but never made"));
        self.names.get(&self.entry(name)?).copied().ok_or_else(unknown)
    }

    fn entry(&self, name: &str) -> Result<NameEntry> {
        let name = name.trim_end_matches('/');
        match name.rsplit_once('/') {
            Some((directory, name)) => Ok((self.find(directory)?, name.to_owned())),
            None => Ok((ROOT, name.to_owned())),
        }
    }
}

impl InodeState {
    /// Returns the contents that survive.
    fn left(&self, loss: &mut Loss) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let mut fates = loss.fates(self.unsynced.len());
        for (_, change) in &self.unsynced {
            change.apply(&mut bytes, &mut fates.next(loss));
        }
        bytes
    }
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>, fate: &mut ChangeLoss<'_>) {
        if fate.is_lost() {
            return;
        }
        match self {
            FileChange::SetLength(length) => bytes.resize(to_usize(*length), 0),
            FileChange::GrowTo(end) => bytes.resize(bytes.len().max(to_usize(*end)), 0),
            FileChange::Write { offset, data } => {
                let begin = to_usize(*offset);
                bytes.resize(bytes.len().max(begin + data.len()), 0);
                for (from, to) in fate.kept(begin, begin + data.len()) {
                    bytes[from..to].copy_from_slice(&data[from - begin..to - begin]);
                }
            }
        }
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("files under test fit into memory")
}

#[cfg(test)]
mod tests;
