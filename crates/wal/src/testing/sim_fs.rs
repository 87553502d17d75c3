//! The file system in memory, and how it ends.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::disk::{DiskChange, Fault, SimDisk, lock, overwrite, parent};
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

/// The file system; clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimFs {
    disk: Arc<Mutex<SimDisk>>,
}

/// An open file of a [`SimFs`]. It stays readable when its name is removed.
#[derive(Debug)]
pub struct SimFile {
    disk: Arc<Mutex<SimDisk>>,
    inode: usize,
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

    /// Calls to the file system so far, reads included: a failing read must be survived as well as a failing
    /// write.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Lets the call numbered `call` (the first is 0) fail. Run a test once without a fault to learn how many
    /// calls it makes, then once for each of them.
    pub fn fail_at(&self, call: u64, fault: Fault) {
        let mut disk = self.disk();
        (disk.fault, disk.lasts) = (Some((call, fault)), fault == Fault::Stop);
    }

    /// Lets the call numbered `call` and all later ones fail: a disk that is full, or gone. A full disk still
    /// reads, syncs, renames and removes.
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

    /// Changes the bytes of a file without a write, as a decaying disk does. Both images change: no crash
    /// brings the old bytes back.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.disk();
        let inode = disk.names.files[path];
        let inode = &mut disk.inodes[inode];
        change(&mut inode.cached);
        inode.synced.clone_from(&inode.cached);
        inode.unsynced.clear();
    }

    fn disk(&self) -> MutexGuard<'_, SimDisk> {
        lock(&self.disk)
    }
}

impl Fs for SimFs {
    type File = SimFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        disk.has_parent(path)?;
        if !disk.names.dirs.contains(path) {
            disk.rename_now(DiskChange::Dir(path.to_path_buf()));
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
        disk.rename_now(DiskChange::Create(path.to_path_buf(), inode));
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
        disk.rename_now(DiskChange::Rename(from.to_path_buf(), to.to_path_buf(), inode));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call()?;
        disk.inode(path)?;
        disk.rename_now(DiskChange::Remove(path.to_path_buf()));
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
        disk.call()?;
        let changes = std::mem::take(&mut disk.unsynced_names).into_iter();
        let (synced, unsynced): (Vec<_>, Vec<_>) = changes.partition(|change| change.dir() == dir);
        disk.unsynced_names = unsynced;
        synced.iter().for_each(|change| disk.synced_names.apply(change));
        disk.reclaim();
        Ok(())
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
#[path = "tests.rs"]
mod tests;
