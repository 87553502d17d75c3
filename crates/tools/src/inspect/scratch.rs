//! A directory for copies, removed afterwards.

use std::path::{Path, PathBuf};

use super::error::InspectError;

/// A temporary directory.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch, InspectError> {
        use std::os::unix::fs::DirBuilderExt;
        let parent = std::env::temp_dir();
        let path =
            parent.join(format!("kv-server-inspect-{}-{:016x}", std::process::id(), rand::random::<u64>()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| InspectError::Scratch { path: parent, source })?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}
