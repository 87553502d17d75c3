//! Directories of the new members, and their states.
//!
//! ```text
//!   live-import.json   identity   action
//!   ────────────────   ────────   ─────────────────────────────────────────────────────────
//!   none               –          require an empty directory, start
//!   copying            none       remove the contents, start again
//!   following          none       continue from the store
//!   finishing          none       remove the log, continue from the store
//!   finishing          exists     reject: it is complete, and may have been started
//!   finished           any        continue if the log is unchanged, else reject: it was used
//! ```
//!
//! * A directory with `live-import.json` and without an identity cannot be started.
//! * All stores of a cluster must be equal, so one run creates the directories of all members: one store, and
//!   copies of it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::import::{self, ImportError};
use config::Settings;
use data_dir::bootstrap::{self, BootstrapError};
use data_dir::{Directory, DirectoryError, Identity, IdentityError};
use process::files;

const FORMAT: u32 = 1;

/// Unusable directory.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not readable as the state of an import", path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error(
        "the import into {} was started with its log in {}, not in {}",
        path.display(),
        begun.display(),
        given.display()
    )]
    OtherLog { path: PathBuf, begun: PathBuf, given: PathBuf },
    #[error(
        "--wal-dir has the data directory {} in it: an import that goes on removes what is in its log \
         directory",
        .0.display()
    )]
    DataInLog(PathBuf),
    #[error("{} has a log that this import did not create: use another --wal-dir", .0.display())]
    OthersLog(PathBuf),
    #[error("the import into {} was started with a different --name, --initial-cluster or token", .0.display())]
    OtherMembers(PathBuf),
    #[error("{} has format {found}, this version reads format {FORMAT}", path.display())]
    Format { path: PathBuf, found: u32 },
    #[error(
        "a member has been started from {}: it is no longer a copy of the source. Import into another \
         directory",
        .0.display()
    )]
    Started(PathBuf),
    #[error(
        "the import into {} was stopped at its very end: the directory is whole, and a member may have been \
         started from it. Start it, or remove it and import again",
        .0.display()
    )]
    MaybeStarted(PathBuf),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Copying,
    Following,
    Finishing,
    Finished,
}

/// Contents of `live-import.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    format: u32,
    stage: Stage,
    /// ID of the copied cluster; None before the first response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Directory of the log, which is removed when the import resumes.
    wal_dir: PathBuf,
    /// SHA-256 of the finished log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

/// First step of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Copy,
    Follow,
}

/// A member's directory, locked.
pub struct ImportPlace {
    directory: Directory,
    identity: Identity,
    mark: Mark,
}

impl ImportPlace {
    /// Opens an empty directory, which starts an import, or the directory of an import of the same members
    /// that was never started. The contents of the latter are not modified.
    pub fn open(settings: &Settings) -> Result<ImportPlace, PlaceError> {
        let identity = bootstrap::first_identity(settings)?;
        let (path, wal_dir) = (&settings.data_dir, settings.wal_dir.as_deref());
        if wal_dir.is_some_and(|wal_dir| Directory::lies_in(path, wal_dir)) {
            return Err(PlaceError::DataInLog(path.clone()));
        }
        if read_mark(&Directory::live_import_in(&settings.data_dir))?.is_none() {
            import::check_empty(settings)?;
        }
        let directory = Directory::open(&settings.data_dir, settings.wal_dir.as_deref())?;
        let mark = read_mark(&directory.live_import_path())?;
        let wal_dir =
            std::path::absolute(directory.wal_dir()).map_err(io_error("find", directory.wal_dir()))?;
        let new =
            Mark { format: FORMAT, stage: Stage::Copying, source: None, log: None, wal_dir: wal_dir.clone() };
        let (is_new, mark) = (mark.is_none(), mark.unwrap_or(new));
        if mark.wal_dir != wal_dir {
            return Err(PlaceError::OtherLog {
                path: directory.path().to_owned(),
                begun: mark.wal_dir,
                given: wal_dir,
            });
        }
        let mut place = ImportPlace { directory, identity, mark };
        let path = place.directory.path().to_owned();
        if place.is_finished() && place.mark.log != Some(place.log_digest()?) {
            return Err(PlaceError::Started(path));
        }
        if let Some(made) = Identity::read(&place.directory.identity_path())? {
            if !place.is_finished() {
                return Err(PlaceError::MaybeStarted(path));
            }
            if (made.cluster_id, &made.name) != (place.identity.cluster_id, &place.identity.name) {
                return Err(PlaceError::OtherMembers(path));
            }
        }
        // The log in another state belongs to another member.
        let has_begun = matches!(place.mark.stage, Stage::Finishing | Stage::Finished);
        if !has_begun && !list(place.directory.wal_dir())?.is_empty() {
            return Err(PlaceError::OthersLog(place.directory.wal_dir().to_owned()));
        }
        if is_new {
            place.write_mark(Stage::Copying, None)?;
        }
        Ok(place)
    }

    /// Returns the first step for the directory whose store is created from the source.
    pub fn begin(&self) -> Begin {
        match self.mark.stage {
            Stage::Copying => Begin::Copy,
            Stage::Following | Stage::Finishing | Stage::Finished => Begin::Follow,
        }
    }

    /// Reports whether a member can be started from the directory.
    pub fn is_finished(&self) -> bool {
        self.mark.stage == Stage::Finished
    }

    /// Prepares the directory for the import. It cannot be started until it is finished again.
    pub fn take(&mut self) -> Result<(), PlaceError> {
        self.unfinish()?;
        match self.begin() {
            Begin::Copy => self.restart_copy(),
            Begin::Follow => self.write_mark(Stage::Following, None),
        }
    }

    /// Like `take`, for another member's directory, which gets a copy of the store.
    pub fn take_other(&mut self) -> Result<(), PlaceError> {
        self.unfinish()?;
        self.restart_copy()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn store_dir(&self) -> PathBuf {
        self.directory.store_dir()
    }

    /// Returns the path of the source's database file during the copy.
    pub fn file_path(&self) -> PathBuf {
        self.directory.path().join("live-import.db")
    }

    /// Returns the ID of the copied cluster, if it was recorded.
    pub fn source(&self) -> Option<&str> {
        self.mark.source.as_deref()
    }

    /// Records that the store was created, and removes the database file.
    pub fn copied(&mut self, source: String) -> Result<(), PlaceError> {
        self.mark.source = Some(source);
        self.write_mark(Stage::Following, None)?;
        remove_file(&self.file_path())
    }

    /// Removes the store, to copy it again.
    fn restart_copy(&mut self) -> Result<(), PlaceError> {
        self.mark.source = None;
        self.write_mark(Stage::Copying, None)?;
        clear(&self.store_dir())
    }

    /// Copies another directory's store, which must be closed.
    pub fn copy_store(&self, from: &Path) -> Result<(), PlaceError> {
        clear(&self.store_dir())?;
        copy_tree(from, &self.store_dir())
    }

    /// Creates log and identity. A member can be started afterwards.
    pub fn finish(&mut self) -> Result<(), PlaceError> {
        self.write_mark(Stage::Finishing, None)?;
        bootstrap::establish_after_import(&self.identity, &self.directory)?;
        let log = self.log_digest()?;
        self.write_mark(Stage::Finished, Some(log))
    }

    /// Reverts `finish`: removes the identity, and then the log, after the mark no longer declares it
    /// complete.
    fn unfinish(&mut self) -> Result<(), PlaceError> {
        remove_file(&self.directory.identity_path())?;
        if self.is_finished() {
            self.write_mark(Stage::Finishing, None)?;
        }
        clear(self.directory.wal_dir())
    }

    fn write_mark(&mut self, stage: Stage, log: Option<String>) -> Result<(), PlaceError> {
        self.mark = Mark { stage, log, ..self.mark.clone() };
        let path = self.directory.live_import_path();
        let bytes = serde_json::to_vec_pretty(&self.mark).expect("a mark has only text and numbers");
        files::replace(&path, &bytes).map_err(io_error("write", &path))
    }

    /// Returns the SHA-256 of the names and contents of the log files.
    fn log_digest(&self) -> Result<String, PlaceError> {
        let dir = self.directory.wal_dir();
        let mut names: Vec<PathBuf> = list(dir)?;
        names.sort_unstable();
        let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
        for path in names {
            hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            let mut file = File::open(&path).map_err(io_error("open", &path))?;
            hasher.update(file.metadata().map_err(io_error("look at", &path))?.len().to_be_bytes());
            loop {
                let read = file.read(&mut buffer).map_err(io_error("read", &path))?;
                if read == 0 {
                    break;
                }
                hasher.update(&buffer[..read]);
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn read_mark(path: &Path) -> Result<Option<Mark>, PlaceError> {
    let bytes = match files::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let malformed = |source| PlaceError::Malformed { path: path.to_owned(), source };
    let mark: Mark = serde_json::from_slice(&bytes).map_err(malformed)?;
    if mark.format != FORMAT {
        return Err(PlaceError::Format { path: path.to_owned(), found: mark.format });
    }
    Ok(Some(mark))
}

fn io_error(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::Io { attempt, path, source }
}

/// Durably removes a file, which may be missing.
fn remove_file(path: &Path) -> Result<(), PlaceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| files::sync_parent(path)).map_err(io_error("remove", path)),
    }
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, PlaceError> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(io_error("list", dir))
}

/// Creates or empties a directory.
fn clear(dir: &Path) -> Result<(), PlaceError> {
    fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    for path in list(dir)? {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(io_error("remove", &path))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))
}

/// Durably copies files and directories.
fn copy_tree(from: &Path, to: &Path) -> Result<(), PlaceError> {
    for path in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            fs::create_dir(&target).map_err(io_error("make", &target))?;
            copy_tree(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(io_error("copy", &path))?;
            File::open(&target).and_then(|file| file.sync_all()).map_err(io_error("sync", &target))?;
        }
    }
    File::open(to).and_then(|dir| dir.sync_all()).map_err(io_error("sync", to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::MemberFlags;

    fn settings(data_dir: &Path, wal_dir: Option<&Path>) -> Settings {
        settings_with(data_dir, wal_dir, "test")
    }

    fn settings_with(data_dir: &Path, wal_dir: Option<&Path>, token: &str) -> Settings {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let flags = MemberFlags {
            data_dir: text(data_dir),
            wal_dir: wal_dir.map(text),
            name: "default".to_owned(),
            initial_cluster: None,
            initial_cluster_token: token.to_owned(),
            initial_advertise_peer_urls: "http://localhost:2380".to_owned(),
        };
        flags.settings().unwrap()
    }

    fn taken(settings: &Settings) -> ImportPlace {
        let mut place = ImportPlace::open(settings).unwrap();
        place.take().unwrap();
        place
    }

    /// Contents remain until `take`.
    fn outcome(settings: &Settings) -> String {
        let files = || {
            let [mark, identity] =
                ["live-import.json", "identity.json"].map(|name| settings.data_dir.join(name));
            [fs::read(mark).ok(), fs::read(identity).ok()]
        };
        let before = files();
        let opened = ImportPlace::open(settings);
        assert!(before[0].is_none() || files() == before);
        match opened {
            Ok(mut place) => {
                let begin = place.begin();
                place.take().unwrap();
                assert!(!place.directory.identity_path().exists(), "a member could be started");
                format!("{begin:?}")
            }
            Err(error) => error.to_string(),
        }
    }

    fn followed(settings: &Settings) -> ImportPlace {
        let mut place = taken(settings);
        place.copied("1".to_owned()).unwrap();
        place
    }

    fn finished(settings: &Settings) -> ImportPlace {
        let mut place = followed(settings);
        place.finish().unwrap();
        place
    }

    /// Finished, and then modified by a member.
    fn used(settings: &Settings) -> ImportPlace {
        let place = finished(settings);
        fs::write(place.directory.wal_dir().join("more"), "entries").unwrap();
        place
    }

    type Before = fn(&Settings);

    #[test]
    fn a_run_goes_on_where_the_one_before_was_cut_short() {
        let cases: [(&str, Before, &str); 12] = [
            ("empty", |_| {}, "Copy"),
            ("copying", |settings| drop(taken(settings)), "Copy"),
            ("following", |settings| drop(followed(settings)), "Follow"),
            ("finished", |settings| drop(finished(settings)), "Follow"),
            (
                "finishing, without an identity",
                |settings| {
                    let mut place = finished(settings);
                    place.write_mark(Stage::Finishing, None).unwrap();
                    remove_file(&place.directory.identity_path()).unwrap();
                },
                "Follow",
            ),
            (
                "finishing, with an identity",
                |settings| finished(settings).write_mark(Stage::Finishing, None).unwrap(),
                "stopped at its very end",
            ),
            ("used by a member", |settings| drop(used(settings)), "a member has been started"),
            (
                "used by a member, whose identity was lost",
                |settings| remove_file(&used(settings).directory.identity_path()).unwrap(),
                "a member has been started",
            ),
            (
                "finished, taken back as far as the identity",
                |settings| remove_file(&finished(settings).directory.identity_path()).unwrap(),
                "Follow",
            ),
            (
                "finished, taken back as far as a part of the log",
                |settings| {
                    let mut place = finished(settings);
                    place.unfinish().unwrap();
                    fs::write(place.directory.wal_dir().join("left"), "").unwrap();
                },
                "Follow",
            ),
            (
                "finished for other members",
                |settings| drop(finished(&settings_with(&settings.data_dir, None, "other"))),
                "was started with a different --name, --initial-cluster or token",
            ),
            (
                "of another kind",
                |settings| {
                    fs::create_dir_all(&settings.data_dir).unwrap();
                    fs::write(settings.data_dir.join("file"), "").unwrap();
                },
                "is not empty",
            ),
        ];
        for (name, before, wanted) in cases {
            let dir = tempfile::tempdir().unwrap();
            let settings = settings(&dir.path().join("data"), None);
            before(&settings);
            let found = outcome(&settings);
            assert!(found.contains(wanted), "{name}: {found}");
        }
    }

    #[test]
    fn the_log_is_not_where_the_data_directory_is() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        for wal_dir in [data.as_path(), dir.path()] {
            let refused = outcome(&settings(&data, Some(wal_dir)));
            assert!(refused.contains("--wal-dir has the data directory"), "{refused}");
            assert!(!data.exists(), "nothing is made");
        }
    }

    #[test]
    fn the_log_of_another_directory_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (data, log) = (dir.path().join("data"), dir.path().join("log"));
        drop(followed(&settings(&data, None)));
        fs::create_dir(&log).unwrap();
        fs::write(log.join("segment"), "of another member").unwrap();
        let found = outcome(&settings(&data, Some(&log)));
        assert!(found.contains("was started with its log in"), "{found}");
        assert!(log.join("segment").exists());
        // The same for a log that a member created there after the import started.
        let (data, log) = (dir.path().join("data2"), dir.path().join("log2"));
        drop(followed(&settings(&data, Some(&log))));
        fs::write(log.join("segment"), "of another member").unwrap();
        let found = outcome(&settings(&data, Some(&log)));
        assert!(found.contains("has a log that this import did not create"), "{found}");
        assert!(log.join("segment").exists());
    }
}
