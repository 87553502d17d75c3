//! Storage of an archive's objects: a local directory, or a bucket with an S3 API.
//!
//! Objects are written atomically and durably. Names have one directory level. Calls block.

mod error;

mod bucket;
mod local;
mod tries; // timeouts and retries of a bucket

use std::io;
use std::path::{Path, PathBuf};

use tokio::runtime::Handle;

use super::inventory::{BASES, Inventory, SEGMENTS};
use bucket::{Bucket, User};
pub use error::PlaceError;
use local::{Draft, Local};

use process::scratch::Scratch;
use process::shutdown::Stop;

/// A directory or a bucket.
#[derive(Debug)]
pub enum ArchivePlace {
    Local(Local),
    Bucket(Bucket),
}

/// A local file, temporary or not.
#[derive(Debug)]
pub struct LocalFile {
    pub path: PathBuf,
    /// Temporary directory of the file, removed on drop.
    _scratch: Option<Scratch>,
    /// Draft, removed on drop unless it was adopted.
    _draft: Option<Draft>,
}

/// Reports whether the address is meant to be a bucket, even if it is malformed.
pub fn is_bucket(address: &str) -> bool {
    let address = address.to_ascii_lowercase();
    address.contains("://") || ["s3:", "s3/"].iter().any(|begin| address.starts_with(begin))
}

impl ArchivePlace {
    /// Opens an archive for reading. `runtime` drives the connections to a bucket.
    pub fn at(address: &str, runtime: &Handle) -> Result<ArchivePlace, PlaceError> {
        match is_bucket(address) {
            true => Ok(ArchivePlace::Bucket(Bucket::open(address, runtime, User::Reader)?)),
            false => Ok(ArchivePlace::Local(Local::at(Path::new(address)))),
        }
    }

    /// Opens an archive for writing, for a caller that retries failures.
    pub fn take(address: &str, runtime: &Handle) -> Result<ArchivePlace, PlaceError> {
        match is_bucket(address) {
            true => Ok(ArchivePlace::Bucket(Bucket::open(address, runtime, User::Archiver)?)),
            false => Ok(ArchivePlace::Local(Local::take(Path::new(address))?)),
        }
    }

    /// Returns the path of a new file, which [`ArchivePlace::adopt`] turns into an object.
    pub fn draft(&self, name: &str) -> Result<LocalFile, PlaceError> {
        match self {
            ArchivePlace::Local(local) => {
                let draft = local.draft(name);
                Ok(LocalFile { path: draft.0.clone(), _scratch: None, _draft: Some(draft) })
            }
            ArchivePlace::Bucket(_) => LocalFile::within(Scratch::new()),
        }
    }

    /// Turns a draft into a new object. `stop` cancels an upload without leaving a partial object.
    pub fn adopt(&self, draft: &Path, name: &str, stop: &Stop) -> Result<(), PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.adopt(draft, name),
            ArchivePlace::Bucket(bucket) => bucket.adopt(draft, name, stop.stopped()),
        }
    }

    /// Creates an object. Returns false if there is one of that name with other contents. One with equal
    /// contents was written by an attempt whose response was lost.
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

    /// Writes an object, and replaces an existing one.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.replace(name, bytes),
            ArchivePlace::Bucket(bucket) => bucket.replace(name, bytes.to_vec()),
        }
    }

    /// Lists the object names in a directory, without its name, in order.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.list(directory),
            ArchivePlace::Bucket(bucket) => bucket.list(directory),
        }
    }

    /// Lists all bases and segments.
    pub fn inventory(&self) -> Result<Inventory, PlaceError> {
        Ok(Inventory::of(&self.list(BASES)?, &self.list(SEGMENTS)?))
    }

    /// Reads an object. Returns None if it does not exist.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        match self {
            ArchivePlace::Local(local) => local.get(name),
            ArchivePlace::Bucket(bucket) => bucket.get(name),
        }
    }

    /// Returns a file with the object's contents. Objects of a bucket are downloaded to the file system of
    /// `near`.
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
