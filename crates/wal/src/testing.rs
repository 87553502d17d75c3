//! A file system in memory that loses what real ones may lose: for tests of the log and of what stands on it.
//!
//! ```text
//!   write_at ─▶ cached image ──sync_data──▶ synced image        a power cut keeps the synced image
//!   create, rename, remove ─▶ names ──sync_dir──▶ synced names  and what chance keeps of the rest
//! ```
//!
//! * A disk after a crash is a new [`SimFs`]: handles of the crashed process go on writing to the old one, in vain.
//! * A failed sync loses the writes it should have kept, although reads still show them and later syncs succeed: that
//!   is what kernels do.
//! * Nothing here is random: chance is a function that the caller passes in.
//!
//! ```
//! use std::path::Path;
//! use wal::testing::{Crash, SimFs};
//! use wal::{File, Fs};
//!
//! # fn main() -> std::io::Result<()> {
//! let fs = SimFs::new();
//! let file = fs.create(Path::new("/journal"))?;
//! fs.sync_dir(Path::new("/"))?;
//! file.write_at(0, b"kept")?;
//! file.sync_data()?;
//! file.write_at(4, b" and lost")?;
//!
//! let after = fs.crashed(Crash::Synced, &mut || false);
//! assert_eq!(after.bytes(Path::new("/journal")), b"kept");
//! # Ok(())
//! # }
//! ```
//!
//! What is not modelled: permissions, links, directories that are removed or renamed, a disk that reorders the syncs themselves.
//! A failed sync of a directory leaves its names as they were, to be synced by the next one.
//!
//! Knows nothing of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{File, Fs};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// How a process ends, from mild to harsh, from its disk's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: the kernel keeps every write, synced or not.
    Kill,
    /// Power cut: only what was synced is kept.
    Synced,
    /// Power cut: each unsynced write and each unsynced change of a name is kept or lost.
    Subset,
    /// Power cut: as `Subset`, but each 512-byte sector of a write by itself.
    Torn,
}

impl Crash {
    pub const ALL: [Crash; 4] = [Crash::Kill, Crash::Synced, Crash::Subset, Crash::Torn];
}

/// What goes wrong at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This call and all later ones do nothing and fail: the process is as good as dead.
    Stop,
    /// The call fails with EIO.
    InputOutput,
    /// The call fails with ENOSPC; a write leaves its first half behind.
    NoSpace,
}

/// The file system; clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimFs {
    disk: Arc<Mutex<Disk>>,
}

/// An open file of a [`SimFs`]. It stays readable when its name is removed.
#[derive(Debug)]
pub struct SimFile {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    /// Places in `inodes` that can be used again.
    free: Vec<usize>,
    /// As processes see them.
    names: Names,
    /// As a power cut leaves them.
    synced_names: Names,
    /// What the former are ahead of the latter, in order.
    unsynced_names: Vec<Change>,
    /// Calls so far.
    calls: u64,
    fault: Option<(u64, Fault)>,
    /// What every later call fails with, of those that it concerns.
    lasting: Option<Fault>,
    /// The fault to come lasts.
    lasts: bool,
}

#[derive(Clone, Debug, Default)]
struct Names {
    files: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// As processes read it.
    cached: Vec<u8>,
    /// As a power cut leaves it.
    synced: Vec<u8>,
    /// Writes since, with their offsets, in order.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Open handles; a file without a name lives as long as one of them.
    handles: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Dir(PathBuf),
    Create(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, usize),
}

impl SimFs {
    /// An empty disk.
    #[must_use]
    pub fn new() -> SimFs {
        SimFs::default()
    }

    /// The disk as the next process finds it. `chance` is asked once for each thing that may be kept or lost.
    #[must_use]
    pub fn crashed(&self, crash: Crash, chance: &mut dyn FnMut() -> bool) -> SimFs {
        let mut disk = self.disk().clone();
        match crash {
            Crash::Kill => {}
            Crash::Synced => disk.power_cut(None, &mut || false),
            Crash::Subset => disk.power_cut(None, chance),
            Crash::Torn => disk.power_cut(Some(SECTOR_BYTES), chance),
        }
        (disk.calls, disk.fault, disk.lasting, disk.lasts) = (0, None, None, false);
        disk.inodes.iter_mut().for_each(|inode| inode.handles = 0);
        disk.reclaim();
        SimFs { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Calls to the file system so far, reads included: a failing read must be survived as well as a failing write.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Lets the call numbered `call` (the first is 0) fail. Run a test once without a fault to learn how many calls it
    /// makes, then once for each of them.
    pub fn fail_at(&self, call: u64, fault: Fault) {
        let mut disk = self.disk();
        (disk.fault, disk.lasts) = (Some((call, fault)), fault == Fault::Stop);
    }

    /// Lets the call numbered `call` and all later ones fail: a disk that is full, or gone. A full disk still reads,
    /// syncs, renames and removes.
    pub fn fail_from(&self, call: u64, fault: Fault) {
        let mut disk = self.disk();
        (disk.fault, disk.lasts) = (Some((call, fault)), true);
    }

    /// The cause is gone: calls succeed again. What failed is not undone.
    pub fn heal(&self) {
        let mut disk = self.disk();
        (disk.fault, disk.lasting) = (None, None);
    }

    /// The bytes of a file as a process reads them.
    #[must_use]
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let disk = self.disk();
        disk.inodes[disk.names.files[path]].cached.clone()
    }

    /// Changes the bytes of a file behind everybody's back, as a decaying disk does. Both images change: no crash brings
    /// the old bytes back.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.disk();
        let inode = disk.names.files[path];
        let inode = &mut disk.inodes[inode];
        change(&mut inode.cached);
        inode.synced.clone_from(&inode.cached);
        inode.unsynced.clear();
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }
}

/// A test that panics must not fail other threads with a second, misleading panic.
fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// Counts a call that takes no room, and fails it if it is to fail.
    fn call(&mut self) -> io::Result<()> {
        self.count(|lasting| lasting != Fault::NoSpace)
    }

    /// The same for a call that takes room.
    fn call_for_room(&mut self) -> io::Result<()> {
        self.count(|_| true)
    }

    /// `concerned` tells whether a fault that lasts fails this call.
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

    fn inode(&self, path: &Path) -> io::Result<usize> {
        self.names.files.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Frees the files that no name and no handle leads to, so that long simulations stay small.
    fn reclaim(&mut self) {
        let mut used = BTreeSet::from_iter(self.free.iter().copied());
        used.extend(self.names.files.values().chain(self.synced_names.files.values()));
        used.extend(self.unsynced_names.iter().filter_map(Change::inode));
        for (at, inode) in self.inodes.iter_mut().enumerate() {
            if inode.handles == 0 && !used.contains(&at) {
                *inode = Inode::default();
                self.free.push(at);
            }
        }
    }

    fn new_inode(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.inodes.push(Inode::default());
            self.inodes.len() - 1
        })
    }

    /// Changes a name for all processes; the disk learns of it at the next sync of the directory.
    fn rename_now(&mut self, change: Change) {
        self.names.apply(&change);
        self.unsynced_names.push(change);
    }

    fn has_parent(&self, path: &Path) -> io::Result<()> {
        let parent = parent(path);
        let known = parent.parent().is_none() || self.names.dirs.contains(parent);
        if known { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Chance is asked in a fixed order, names first, so that one seed always leaves one disk.
    fn power_cut(&mut self, sector_bytes: Option<usize>, chance: &mut dyn FnMut() -> bool) {
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

impl Names {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Dir(path) => {
                self.dirs.insert(path.clone());
            }
            Change::Create(path, inode) => {
                self.files.insert(path.clone(), *inode);
            }
            Change::Remove(path) => {
                self.files.remove(path);
            }
            Change::Rename(from, to, inode) => {
                self.files.remove(from);
                self.files.insert(to.clone(), *inode);
            }
        }
    }
}

impl Change {
    /// The file that would have a name again, or still, depending on what a power cut keeps.
    fn inode(&self) -> Option<usize> {
        match self {
            Change::Create(_, inode) | Change::Rename(_, _, inode) => Some(*inode),
            Change::Dir(_) | Change::Remove(_) => None,
        }
    }

    /// The directory whose sync makes the change durable.
    fn dir(&self) -> &Path {
        match self {
            Change::Dir(path) | Change::Create(path, _) | Change::Remove(path) => parent(path),
            Change::Rename(_, to, _) => parent(to),
        }
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::Stop => io::Error::other("the process was stopped"),
            // The numbers of EIO and ENOSPC on every Unix.
            Fault::InputOutput => io::Error::from_raw_os_error(5),
            Fault::NoSpace => io::Error::from_raw_os_error(28),
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("every path in a SimFs is absolute and none is the root")
}

/// Cuts a write at the borders of sectors. They are counted from the beginning of the file, as a disk does, and not from
/// that of the write.
fn pieces(offset: usize, bytes: &[u8], sector_bytes: Option<usize>) -> Vec<(usize, &[u8])> {
    let Some(sector_bytes) = sector_bytes else {
        return vec![(offset, bytes)];
    };
    let (mut offset, mut rest, mut pieces) = (offset, bytes, Vec::new());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(sector_bytes - offset % sector_bytes));
        pieces.push((offset, piece));
        (offset, rest) = (offset + piece.len(), behind);
    }
    pieces
}

fn overwrite(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

impl Fs for SimFs {
    type File = SimFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        disk.has_parent(path)?;
        if !disk.names.dirs.contains(path) {
            disk.rename_now(Change::Dir(path.to_path_buf()));
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        let mut disk = self.disk();
        disk.call_for_room()?;
        disk.has_parent(path)?;
        if disk.names.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = disk.new_inode();
        disk.rename_now(Change::Create(path.to_path_buf(), inode));
        disk.inodes[inode].handles += 1;
        Ok(SimFile { disk: Arc::clone(&self.disk), inode })
    }

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        let mut disk = self.disk();
        disk.call()?;
        let inode = disk.inode(path)?;
        disk.inodes[inode].handles += 1;
        Ok(SimFile { disk: Arc::clone(&self.disk), inode })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        assert_eq!(parent(from), parent(to), "a log renames within its directory");
        let mut disk = self.disk();
        disk.call()?;
        let inode = disk.inode(from)?;
        disk.rename_now(Change::Rename(from.to_path_buf(), to.to_path_buf(), inode));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        disk.inode(path)?;
        disk.rename_now(Change::Remove(path.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.disk();
        disk.call()?;
        let inside = disk.names.files.keys().filter(|path| parent(path) == dir);
        Ok(inside.filter_map(|path| path.file_name()?.to_str().map(String::from)).collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let Err(error) = disk.call() else {
            let (synced, unsynced) =
                std::mem::take(&mut disk.unsynced_names).into_iter().partition(|change| change.dir() == dir);
            disk.unsynced_names = unsynced;
            let synced: Vec<Change> = synced;
            synced.iter().for_each(|change| disk.synced_names.apply(change));
            disk.reclaim();
            return Ok(());
        };
        Err(error)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        lock(&self.disk).inodes[self.inode].handles -= 1;
    }
}

impl File for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        let result = disk.call_for_room();
        let kept = match &result {
            Ok(()) => bytes,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => &bytes[..bytes.len() / 2],
            Err(_) => &[],
        };
        let offset = usize::try_from(offset).expect("a simulated disk fits in memory");
        let inode = &mut disk.inodes[self.inode];
        overwrite(&mut inode.cached, offset, kept);
        inode.unsynced.push((offset, kept.to_vec()));
        result
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut disk = lock(&self.disk);
        disk.call()?;
        let image = &disk.inodes[self.inode].cached;
        let begin = usize::try_from(offset).map_or(image.len(), |offset| offset.min(image.len()));
        let bytes = buffer.len().min(image.len() - begin);
        buffer[..bytes].copy_from_slice(&image[begin..][..bytes]);
        Ok(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        let result = disk.call();
        let stopped = disk.lasting == Some(Fault::Stop);
        let inode = &mut disk.inodes[self.inode];
        if stopped {
            return result; // a sync that was never asked for loses nothing
        }
        for (offset, bytes) in std::mem::take(&mut inode.unsynced) {
            if result.is_ok() {
                overwrite(&mut inode.synced, offset, &bytes);
            }
        }
        result
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = lock(&self.disk);
        disk.call()?;
        Ok(disk.inodes[self.inode].cached.len() as u64)
    }
}

#[cfg(test)]
mod tests;
