//! State of a simulated disk in two versions: as processes see it, and as a power failure leaves it.
//!
//! ```text
//!   inode   cached ◀─ write      synced ◀─ sync: the writes since, in order
//!   names   seen   ◀─ rename     synced ◀─ sync of the directory: the changes since, in order
//! ```
//!
//! Unsynced writes and name changes are stored separately, so that any of them can survive. A file
//! exists as long as it is reachable by a name, by an unsynced change that may restore a name, or by an
//! open handle.
//!
//! Also counts calls and injects faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Fault injected into a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This call and all later ones fail without effect: the process has effectively crashed.
    Stop,
    /// The call fails with EIO.
    InputOutput,
    /// The call fails with ENOSPC; a write stores its first half.
    NoSpace,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk {
    pub(super) inodes: Vec<Inode>,
    /// Reusable indexes of `inodes`.
    pub(super) free: Vec<usize>,
    /// Names seen by processes.
    pub(super) names: DiskNames,
    /// Names after a power failure.
    pub(super) synced_names: DiskNames,
    /// Changes from `synced_names` to `names`, in order.
    pub(super) unsynced_names: Vec<DiskChange>,
    pub(super) calls: u64,
    pub(super) fault: Option<(u64, Fault)>,
    /// Error of all later calls that the fault affects.
    pub(super) lasting: Option<Fault>,
    /// True if the pending fault is permanent.
    pub(super) lasts: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DiskNames {
    pub(super) files: BTreeMap<PathBuf, usize>,
    pub(super) dirs: BTreeSet<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// Contents seen by processes.
    pub(super) cached: Vec<u8>,
    /// Contents after a power failure.
    pub(super) synced: Vec<u8>,
    /// Offsets and bytes of unsynced writes, in order.
    pub(super) unsynced: Vec<(usize, Vec<u8>)>,
    /// Number of open handles; they keep a file without a name alive.
    pub(super) handles: usize,
}

#[derive(Clone, Debug)]
pub(super) enum DiskChange {
    Dir(PathBuf),
    Create(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, usize),
}

/// Locks the disk. Ignores poisoning, so that a panicking test does not cause misleading panics on
/// other threads.
pub(super) fn lock(disk: &Mutex<SimDisk>) -> MutexGuard<'_, SimDisk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimDisk {
    /// Counts a call that does not need disk space, and injects a fault that is due.
    pub(super) fn call(&mut self) -> io::Result<()> {
        self.count(|lasting| lasting != Fault::NoSpace)
    }

    /// Counts a call that needs disk space, and injects a fault that is due.
    pub(super) fn call_for_room(&mut self) -> io::Result<()> {
        self.count(|_| true)
    }

    /// Counts a call. `concerned` reports whether a permanent fault affects it.
    fn count(&mut self, concerned: impl FnOnce(Fault) -> bool) -> io::Result<()> {
        let call = self.calls;
        self.calls += 1;
        if let Some((_, fault)) = self.fault.take_if(|(at, _)| *at == call) {
            self.lasting = Some(fault).filter(|_| self.lasts);
            return Err(fault.error());
        }
        match self.lasting {
            Some(fault) if concerned(fault) => Err(fault.error()),
            _ => Ok(()),
        }
    }

    pub(super) fn inode(&self, path: &Path) -> io::Result<usize> {
        self.names.files.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Frees unreachable files, so that long simulations use little memory.
    pub(super) fn reclaim(&mut self) {
        let mut used = BTreeSet::from_iter(self.free.iter().copied());
        used.extend(self.names.files.values().chain(self.synced_names.files.values()));
        used.extend(self.unsynced_names.iter().filter_map(DiskChange::inode));
        for (at, inode) in self.inodes.iter_mut().enumerate() {
            if inode.handles == 0 && !used.contains(&at) {
                *inode = Inode::default();
                self.free.push(at);
            }
        }
    }

    pub(super) fn new_inode(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.inodes.push(Inode::default());
            self.inodes.len() - 1
        })
    }

    /// Changes a name for all processes; it becomes durable at the next sync of the directory.
    pub(super) fn rename_now(&mut self, change: DiskChange) {
        self.names.apply(&change);
        self.unsynced_names.push(change);
    }

    pub(super) fn has_parent(&self, path: &Path) -> io::Result<()> {
        let parent = parent(path);
        let known = parent.parent().is_none() || self.names.dirs.contains(parent);
        if known { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Simulates a power failure. Calls `chance` in a fixed order, names first, so that a seed is
    /// reproducible.
    pub(super) fn power_cut(&mut self, sector_bytes: Option<usize>, chance: &mut dyn FnMut() -> bool) {
        for change in std::mem::take(&mut self.unsynced_names) {
            if chance() {
                self.synced_names.apply(&change);
            }
        }
        self.names = self.synced_names.clone();
        for inode in &mut self.inodes {
            for (offset, bytes) in std::mem::take(&mut inode.unsynced) {
                for (offset, piece) in pieces(offset, &bytes, sector_bytes) {
                    if chance() {
                        overwrite(&mut inode.synced, offset, piece);
                    }
                }
            }
            inode.cached.clone_from(&inode.synced);
        }
    }
}

impl DiskNames {
    pub(super) fn apply(&mut self, change: &DiskChange) {
        match change {
            DiskChange::Dir(path) => {
                self.dirs.insert(path.clone());
            }
            DiskChange::Create(path, inode) => {
                self.files.insert(path.clone(), *inode);
            }
            DiskChange::Remove(path) => {
                self.files.remove(path);
            }
            DiskChange::Rename(from, to, inode) => {
                self.files.remove(from);
                self.files.insert(to.clone(), *inode);
            }
        }
    }
}

impl DiskChange {
    /// Returns the file that would have a name if this change survived a power failure.
    pub(super) fn inode(&self) -> Option<usize> {
        match self {
            DiskChange::Create(_, inode) | DiskChange::Rename(_, _, inode) => Some(*inode),
            DiskChange::Dir(_) | DiskChange::Remove(_) => None,
        }
    }

    /// Returns the directory that must be synced to make the change durable.
    pub(super) fn dir(&self) -> &Path {
        match self {
            DiskChange::Dir(path) | DiskChange::Create(path, _) | DiskChange::Remove(path) => parent(path),
            DiskChange::Rename(_, to, _) => parent(to),
        }
    }
}

impl Fault {
    /// Returns the error of the failed call.
    #[must_use]
    pub fn error(self) -> io::Error {
        match self {
            Fault::Stop => io::Error::other("the process was stopped"),
            // EIO and ENOSPC on every Unix.
            Fault::InputOutput => io::Error::from_raw_os_error(5),
            Fault::NoSpace => io::Error::from_raw_os_error(28),
        }
    }
}

pub(super) fn parent(path: &Path) -> &Path {
    path.parent().expect("every path in a SimFs is absolute and none is the root")
}

/// Splits a write at sector boundaries, which are relative to the start of the file.
pub(super) fn pieces(offset: usize, bytes: &[u8], sector_bytes: Option<usize>) -> Vec<(usize, &[u8])> {
    let Some(sector_bytes) = sector_bytes else {
        return vec![(offset, bytes)];
    };
    let (mut offset, mut rest, mut pieces) = (offset, bytes, Vec::new());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(sector_bytes - offset % sector_bytes));
        pieces.push((offset, piece));
        (offset, rest) = (offset + piece.len(), after);
    }
    pieces
}

pub(super) fn overwrite(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}
