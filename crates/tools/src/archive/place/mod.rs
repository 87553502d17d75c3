//! Where the objects of an archive lie: a local directory, or a bucket that speaks S3's protocol.
//!
//! An object appears whole and durable, or not at all. Names have one level of directories. Calls block.

mod error; // why a place cannot be used

mod bucket; // objects in a bucket
mod local; // objects as files
mod tries; // how long and how often a bucket is asked

use std::io;
use std::path::{Path, PathBuf};

use tokio::runtime::Handle;

use super::inventory::{BASES, Inventory, SEGMENTS};
use bucket::{Bucket, User};
pub use error::PlaceError;
use local::{Draft, Local};

use process::scratch::Scratch;
use process::shutdown::Stop;

/// A directory or a bucket, as a flag names it.
#[derive(Debug)]
pub enum ArchivePlace {
    Local(Local),
    Bucket(Bucket),
}

/// A file of a local disk.
#[derive(Debug)]
pub struct LocalFile {
    pub path: PathBuf,
    /// Where it lies, if it is removed with this.
    _scratch: Option<Scratch>,
    /// Removed with this, if it has not become an object.
    _draft: Option<Draft>,
}

/// Whether a flag names a bucket, mistyped or not.
pub fn is_bucket(address: &str) -> bool {
    let address = address.to_ascii_lowercase();
    address.contains("://") || ["s3:", "s3/"].iter().any(|begin| address.starts_with(begin))
}

impl ArchivePlace {
    /// To read from. `runtime`: drives the connections to a bucket.
    pub fn at(address: &str, runtime: &Handle) -> Result<ArchivePlace, PlaceError> {
        match is_bucket(address) {
            true => Ok(ArchivePlace::Bucket(Bucket::open(address, runtime, User::Reader)?)),
            false => Ok(ArchivePlace::Local(Local::at(Path::new(address)))),
        }
    }

    /// To write to, for one who tries again what fails.
    pub fn take(address: &str, runtime: &Handle) -> Result<ArchivePlace, PlaceError> {
        match is_bucket(address) {
            true => Ok(ArchivePlace::Bucket(Bucket::open(address, runtime, User::Archiver)?)),
            false => Ok(ArchivePlace::Local(Local::take(Path::new(address))?)),
        }
    }

    /// Where a file may be made that becomes an object by [`ArchivePlace::adopt`].
    pub fn draft(&self, name: &str) -> Result<LocalFile, PlaceError> {
        match self {
            ArchivePlace::Local(local) => {
                let draft = local.draft(name);
                Ok(LocalFile { path: draft.0.clone(), _scratch: None, _draft: Some(draft) })
            }
            ArchivePlace::Bucket(_) => LocalFile::within(Scratch::new()),
        }
    }

    /// A draft becomes a new object. `stop` ends what takes long, and leaves nothing.
    pub fn adopt(&self, draft: &Path, name: &str, stop: &Stop) -> Result<(), PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.adopt(draft, name),
            ArchivePlace::Bucket(bucket) => bucket.adopt(draft, name, stop.stopped()),
        }
    }

    /// Makes a new object. False: one of that name has other bytes. One with the same was made by a try whose
    /// answer was lost.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, PlaceError> {
        let made = match self {
            ArchivePlace::Local(local) => local.put(name, bytes),
            ArchivePlace::Bucket(bucket) => bucket.put(name, bytes.to_vec()),
        };
        match made {
            Err(error) if error.is_there() => match (self.get(name)?, self) {
                (Some(found), _) if found != bytes => Ok(false),
                (Some(_), ArchivePlace::Local(local)) => local.sync(name).map(|()| true),
                (Some(_), ArchivePlace::Bucket(_)) => Ok(true),
                (None, _) => Err(error),
            },
            made => made.map(|()| true),
        }
    }

    /// Makes an object, in place of one of that name.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.replace(name, bytes),
            ArchivePlace::Bucket(bucket) => bucket.replace(name, bytes.to_vec()),
        }
    }

    /// Names of the objects in a directory of the place, without it, in order.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.list(directory),
            ArchivePlace::Bucket(bucket) => bucket.list(directory),
        }
    }

    /// All bases and segments that are there now.
    pub fn inventory(&self) -> Result<Inventory, PlaceError> {
        Ok(Inventory::of(&self.list(BASES)?, &self.list(SEGMENTS)?))
    }

    /// The whole object; None if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.get(name),
            ArchivePlace::Bucket(bucket) => bucket.get(name),
        }
    }

    /// A file with the object. That of a bucket is fetched to the file system of `near`.
    pub fn file(&self, name: &str, near: &Path) -> Result<LocalFile, PlaceError> {
        match self {
            ArchivePlace::Local(local) => {
                Ok(LocalFile { path: local.file(name), _scratch: None, _draft: None })
            }
            ArchivePlace::Bucket(bucket) => {
                let file = LocalFile::within(Scratch::next_to(near))?;
                bucket.fetch(name, &file.path)?;
                Ok(file)
            }
        }
    }

    pub fn remove(&self, name: &str) -> Result<(), PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.remove(name),
            ArchivePlace::Bucket(bucket) => bucket.remove(name),
        }
    }
}

impl LocalFile {
    fn within(scratch: io::Result<Scratch>) -> Result<LocalFile, PlaceError> {
        let scratch = scratch.map_err(PlaceError::Scratch)?;
        let path = scratch.path().join("object");
        Ok(LocalFile { path, _scratch: Some(scratch), _draft: None })
    }
}
