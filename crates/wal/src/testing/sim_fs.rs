//! The simulated file system, and its crashes.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::disk::{DiskChange, Fault, SimDisk, lock, overwrite, parent};
use crate::{File, Fs};

/// Unit of atomic writes.
const SECTOR_BYTES: usize = 512;

/// Kind of crash, from mild to harsh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Killed process: the kernel retains every write, synced or not.
    Kill,
    /// Power failure that preserves synced data only.
    Synced,
    /// Power failure in which each unsynced write and name change survives or is lost.
    Subset,
    /// Power failure like `Subset`, decided per 512-byte sector of a write.
    Torn,
}

impl Crash {
    pub const ALL: [Crash; 4] = [Crash::Kill, Crash::Synced, Crash::Subset, Crash::Torn];
}

/// Simulated file system; clones share the disk.
#[derive(Clone, Debug, Default)]
pub struct SimFs {
    disk: Arc<Mutex<SimDisk>>,
}

/// An open file of a [`SimFs`]. It stays readable after its name is removed.
#[derive(Debug)]
pub struct SimFile {
    disk: Arc<Mutex<SimDisk>>,
    inode: usize,
}

impl SimFs {
    /// Creates an empty disk.
    #[must_use]
    pub fn new() -> SimFs {
        SimFs::default()
    }

    /// Returns the disk after a crash. `chance` is called for each change that may survive or be lost.
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

    /// Returns the number of calls so far. Reads count, because failing reads must be tolerated as well.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Makes call number `call`, counted from 0, fail. Run a test once without a fault to count its calls,
    /// then once for each of them.
    pub fn fail_at(&self, call: u64, fault: Fault) {
        let mut disk = self.disk();
        (disk.fault, disk.lasts) = (Some((call, fault)), fault == Fault::Stop);
    }

    /// Makes call number `call` and all later ones fail, like a full or missing disk. A full disk still
    /// reads, syncs, renames and removes.
    pub fn fail_from(&self, call: u64, fault: Fault) {
        let mut disk = self.disk();
        (disk.fault, disk.lasts) = (Some((call, fault)), true);
    }

    /// Clears the fault: later calls succeed. Failed calls are not repeated.
    pub fn heal(&self) {
        let mut disk = self.disk();
        (disk.fault, disk.lasting) = (None, None);
    }

    /// Returns the contents of a file as seen by processes.
    #[must_use]
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let disk = self.disk();
        disk.inodes[disk.names.files[path]].cached.clone()
    }

    /// Changes the contents of a file without a write, which simulates bit rot. Both versions change, so no
    /// crash restores the old bytes.
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
            return result; // a stopped process did not request this sync, so it loses nothing
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
