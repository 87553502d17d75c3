//! A directory for copies, of a random name and open to its owner only, that is removed in the end.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tokio::runtime::Builder;

use super::shutdown;

/// A directory that is removed with all that is in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// In the directory for temporary files.
    pub fn new() -> io::Result<Scratch> {
        Scratch::within(&std::env::temp_dir())
    }

    /// On the file system of `path`, which may not exist yet: in the first directory above it that does.
    pub fn next_to(path: &Path) -> io::Result<Scratch> {
        let above = path.ancestors().skip(1).find(|above| above.is_dir());
        Scratch::within(above.unwrap_or(Path::new(".")))
    }

    fn within(parent: &Path) -> io::Result<Scratch> {
        let path = parent.join(format!("kv-server-{:032x}", rand::random::<u128>()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        // The error of the system does not name the place.
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", parent.display())))?;
        Ok(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A signal that ends the process removes the directory first.
    pub fn remove_at_signal(&self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let signalled = {
            let _entered = runtime.enter();
            shutdown::signalled()?
        };
        let path = self.0.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(signalled);
            let _stays = fs::remove_dir_all(path);
            std::process::exit(shutdown::SIGNALLED)
        })?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _stays = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_scratch_directory_has_a_new_name_and_is_open_to_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing").join("data");
        let (one, other) = (Scratch::next_to(&missing).unwrap(), Scratch::next_to(&missing).unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        drop((one, other));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
