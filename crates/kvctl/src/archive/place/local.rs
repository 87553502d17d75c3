//! Objects as files of a local directory, synced before they have their name.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::super::inventory::{BASES, HEAD, IDENTITY, SEGMENTS};
use super::error::{PlaceError, bytes_max};
use process::files::{self, FileLock};

/// Extension of files being written.
const DRAFT: &str = "tmp";
/// Held by the archiver that writes here.
const LOCK: &str = "lock";

/// A directory with objects.
#[derive(Debug)]
pub struct Local {
    root: PathBuf,
    /// Locked as long as it is open.
    _lock: Option<FileLock>,
}

/// A draft that is removed on drop unless it has become an object. A draft that did not fit would take
/// space from all later ones.
#[derive(Debug)]
pub struct Draft(pub PathBuf);

/// Whether an archiver makes it in its directory.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(&format!(".{DRAFT}")).unwrap_or(name);
    [LOCK, IDENTITY, HEAD, BASES, SEGMENTS].contains(&name)
}

/// Rejects a directory that is neither an archive nor empty. An archiver creates the object directories
/// first and then the file with its cluster ID.
fn check_is_archive(root: &Path) -> Result<(), PlaceError> {
    if root.join(IDENTITY).exists() {
        return Ok(());
    }
    // Of the file system.
    let is_hidden = |name: &str| name.starts_with('.') || name == "lost+found";
    let mut is_empty = names(root)?.iter().all(|name| is_ours(name) || is_hidden(name));
    for directory in [BASES, SEGMENTS] {
        is_empty &= names(&root.join(directory))?.is_empty();
    }
    is_empty.then_some(()).ok_or_else(|| PlaceError::NoArchive(root.display().to_string()))
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Most have become objects.
        drop(fs::remove_file(&self.0));
    }
}

impl Local {
    /// To read from.
    pub fn at(root: &Path) -> Local {
        Local { root: root.to_owned(), _lock: None }
    }

    /// Opens or creates the directory for writing and removes the drafts of a killed archiver. Rejects a
    /// directory with any file that an archiver does not create.
    pub fn take(root: &Path) -> Result<Local, PlaceError> {
        check_is_archive(root)?;
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(root);
        made.map_err(failed("make", root))?;
        let path = root.join(LOCK);
        let file = files::open_lock(&path).map_err(failed("open", &path))?;
        let lock = FileLock::try_new(file).map_err(failed("lock", &path))?;
        let lock = lock.ok_or_else(|| PlaceError::Taken(root.display().to_string()))?;
        let place = Local { root: root.to_owned(), _lock: Some(lock) };
        for directory in ["", BASES, SEGMENTS] {
            let path = root.join(directory);
            builder.create(&path).map_err(failed("make", &path))?;
            let is_draft = |name: &String| {
                name.ends_with(&format!(".{DRAFT}")) && (!directory.is_empty() || is_ours(name))
            };
            for name in names(&path)?.into_iter().filter(is_draft) {
                let draft = path.join(name);
                fs::remove_file(&draft).map_err(failed("remove", &draft))?;
            }
        }
        sync(root)?;
        Ok(place)
    }

    /// Where a file may be made that becomes an object by [`Local::adopt`].
    pub fn draft(&self, name: &str) -> Draft {
        Draft(self.root.join(format!("{name}.{DRAFT}")))
    }

    /// Makes a new object. One of that name is an error.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), PlaceError> {
        let draft = self.write_draft(name, bytes)?;
        self.adopt(&draft.0, name)
    }

    /// Writes an object, replacing an existing one.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), PlaceError> {
        let (draft, path) = (self.write_draft(name, bytes)?, self.root.join(name));
        fs::rename(&draft.0, &path).map_err(failed("make", &path))?;
        sync_parent(&path)
    }

    fn write_draft(&self, name: &str, bytes: &[u8]) -> Result<Draft, PlaceError> {
        let draft = self.draft(name);
        let written = files::create(&draft.0).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(failed("write", &draft.0))?;
        Ok(draft)
    }

    /// A draft becomes a new object.
    pub fn adopt(&self, draft: &Path, name: &str) -> Result<(), PlaceError> {
        let path = self.root.join(name);
        File::open(draft).and_then(|file| file.sync_all()).map_err(failed("sync", draft))?;
        let renamed = renameat_with(CWD, draft, CWD, &path, RenameFlags::NOREPLACE);
        renamed.map_err(|errno| failed("make", &path)(errno.into()))?;
        sync_parent(&path)
    }

    /// Names of the objects in a directory of the place, in order, without it. Drafts are none.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, PlaceError> {
        let mut found = names(&self.root.join(directory))?;
        found.retain(|name| !name.ends_with(&format!(".{DRAFT}")));
        found.sort_unstable();
        Ok(found)
    }

    /// The whole object; None if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        let path = self.root.join(name);
        let file = match files::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open", &path))?,
        };
        let bytes = file.metadata().map_err(failed("look at", &path))?.len();
        if bytes > bytes_max(name) {
            return Err(PlaceError::TooLarge { name: name.to_owned(), bytes });
        }
        let mut read = Vec::new();
        file.take(bytes).read_to_end(&mut read).map_err(failed("read", &path))?;
        Ok(Some(read))
    }

    /// Where the object can be read as a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes an object durable that is there.
    pub fn sync(&self, name: &str) -> Result<(), PlaceError> {
        sync_parent(&self.root.join(name))
    }

    /// Removes an object, if it exists.
    pub fn remove(&self, name: &str) -> Result<(), PlaceError> {
        let path = self.root.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => sync_parent(&path),
        }
    }
}

fn names(directory: &Path) -> Result<Vec<String>, PlaceError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", directory))?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<io::Result<_>>().map_err(failed("list", directory))
}

fn sync(directory: &Path) -> Result<(), PlaceError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(failed("sync", directory))
}

fn sync_parent(path: &Path) -> Result<(), PlaceError> {
    files::sync_parent(path).map_err(failed("sync the directory of", path))
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::Io { attempt, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_what_no_archiver_has_made_is_left_as_it_is() {
        for file in ["report.tmp", "wal/1.wal", "log/x.tmp", "base/b.db", "archive.json.old"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "of another").unwrap();
            let refused = Local::take(dir.path()).unwrap_err();
            assert!(matches!(refused, PlaceError::NoArchive(_)), "{file}: {refused}");
            assert!(path.exists() && !dir.path().join(LOCK).exists(), "{file}");
        }
        // One that was killed at its first steps is ours.
        let dir = tempfile::tempdir().unwrap();
        for file in [LOCK, "archive.json.tmp", "lost+found"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        Local::take(dir.path()).unwrap().put(IDENTITY, b"1").unwrap();
        for (file, is_kept) in [("report.tmp", true), ("head.json.tmp", false), ("log/1.tmp", false)] {
            let path = dir.path().join(file);
            fs::write(&path, "").unwrap();
            drop(Local::take(dir.path()).unwrap());
            assert_eq!(path.exists(), is_kept, "{file}");
        }
    }

    #[test]
    fn objects_appear_whole_and_are_not_replaced_by_accident() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("archive");
        let place = Local::take(&root).unwrap();
        place.put(IDENTITY, b"1").unwrap();
        assert!(matches!(Local::take(&root), Err(PlaceError::Taken(_))));
        place.put("log/a", b"1").unwrap();
        place.put("log/a", b"2").unwrap_err();
        assert_eq!(place.get("log/a").unwrap().as_deref(), Some(&b"1"[..]));
        place.replace("head.json", b"1").unwrap();
        place.replace("head.json", b"2").unwrap();
        assert_eq!(place.get("head.json").unwrap().as_deref(), Some(&b"2"[..]));
        let draft = place.draft("base/b");
        fs::write(&draft.0, "half").unwrap();
        assert_eq!(place.list("base").unwrap(), Vec::<String>::new());
        let path = draft.0.clone();
        drop(draft);
        assert!(!path.exists(), "no object came of it");
        fs::write(&path, "half").unwrap();
        drop(place);
        let place = Local::take(&root).unwrap();
        assert!(!path.exists(), "left by an archiver that was killed");
        File::create(root.join("log/huge")).and_then(|file| file.set_len(1 << 40)).unwrap();
        assert!(matches!(place.get("log/huge"), Err(PlaceError::TooLarge { .. })));
        place.remove("log/a").unwrap();
        assert_eq!(
            (place.get("log/a").unwrap(), place.list("log").unwrap()),
            (None, vec!["huge".to_owned()])
        );
    }
}
