//! Rotation of log files: backup names and retention.
//!
//! ```text
//!   kv.log ─full─▶ kv-2026-01-02T15-04-05.000.log ─▶ kv-….log.gz ─too old, too many─▶ removed
//! ```
//!
//! Names and rules are those of etcd's log rotation. Times in names are in UTC.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::files;

/// Rotation settings of a log file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    pub bytes_max: u64,
    /// Maximum age of backups.
    pub age_max: Option<Duration>,
    /// Maximum number of backups; 0 for no limit.
    pub backups_max: usize,
    pub compresses: bool,
    /// Local times were requested. Names have UTC times regardless.
    pub wants_local_times: bool,
}

/// Returns an unused backup name for the file `path` at `now`.
pub fn backup(path: &Path, now: SystemTime) -> PathBuf {
    let (stem, extension) = parts(path);
    let mut now = now;
    loop {
        let backup = path.with_file_name(format!("{stem}-{}{extension}", stamp(now)));
        if !backup.exists() && !compressed(&backup).exists() {
            return backup;
        }
        now += Duration::from_millis(1);
    }
}

/// Returns the backups of `path` with their times, latest first.
pub fn backups(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let (stem, extension) = parts(path);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let bare = name.strip_suffix(".gz").unwrap_or(&name);
        let between = bare.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&extension));
        if let Some(stamp) = between.filter(|text| is_stamp(text)) {
            found.push((stamp.to_owned(), entry.path()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

impl Rotation {
    /// Removes and compresses backups in a thread, unless a thread is already running.
    pub fn tidy_in_background(&self, path: &Path) {
        static IS_TIDYING: AtomicBool = AtomicBool::new(false);
        if IS_TIDYING.swap(true, Ordering::AcqRel) {
            return;
        }
        let (rotation, path) = (self.clone(), path.to_owned());
        let tidy = move || {
            if let Err(error) = rotation.tidy(&path, SystemTime::now()) {
                tracing::warn!(%error, path = %path.display(), "old log files were not removed or compressed");
            }
            IS_TIDYING.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("log-rotation".to_owned()).spawn(tidy).is_err() {
            IS_TIDYING.store(false, Ordering::Release);
        }
    }

    /// Removes backups that are too old or too many, and compresses the remaining ones if configured.
    /// Continues after an error: on a full disk, removals free space.
    pub fn tidy(&self, path: &Path, now: SystemTime) -> io::Result<()> {
        let oldest = self.age_max.and_then(|age| now.checked_sub(age)).map(stamp);
        let is_over = |at: usize, stamp: &String| {
            let is_too_many = self.backups_max > 0 && at >= self.backups_max;
            is_too_many || oldest.as_ref().is_some_and(|oldest| stamp < oldest)
        };
        let mut result = Ok(());
        let mut kept = Vec::new();
        for (at, (stamp, backup)) in backups(path)?.into_iter().enumerate() {
            if is_over(at, &stamp) {
                result = result.and(or_gone(std::fs::remove_file(&backup)));
            } else {
                kept.push(backup);
            }
        }
        let is_whole = |backup: &PathBuf| backup.extension().is_none_or(|extension| extension != "gz");
        for backup in kept.into_iter().filter(|backup| self.compresses && is_whole(backup)) {
            result = result.and(or_gone(compress(&backup)));
        }
        result
    }
}

/// Ignores the error if another process or thread has already removed the backup.
fn or_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Compresses a backup. The compressed file appears only when complete.
fn compress(backup: &Path) -> io::Result<()> {
    let (whole, draft) = (compressed(backup), backup.with_extension("gz.tmp"));
    let written = write_compressed(backup, &draft).and_then(|()| std::fs::rename(&draft, whole));
    if let Err(error) = written {
        drop(std::fs::remove_file(&draft));
        return Err(error);
    }
    std::fs::remove_file(backup)
}

fn write_compressed(backup: &Path, to: &Path) -> io::Result<()> {
    let mut from = File::open(backup)?;
    let file = files::create(to)?;
    // Same permissions as the log file.
    file.set_permissions(from.metadata()?.permissions())?;
    let mut encoder = GzEncoder::new(file, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish()?.sync_all()
}

fn compressed(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".gz");
    name.into()
}

/// Splits a file name at the position of its time.
fn parts(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.rfind('.') {
        Some(at) => (name[..at].to_owned(), name[at..].to_owned()),
        None => (name.into_owned(), String::new()),
    }
}

/// Formats a time as `2006-01-02T15-04-05.000`.
fn stamp(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at.max(UNIX_EPOCH)).to_string().trim_end_matches('Z').replace(':', "-")
}

fn is_stamp(text: &str) -> bool {
    const PATTERN: &[u8] = b"0000-00-00T00-00-00.000";
    text.len() == PATTERN.len()
        && text.bytes().zip(PATTERN).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            wanted => byte == *wanted,
        })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn times_of_names_are_dates() {
        for (seconds, wanted) in [
            (0, "1970-01-01T00-00-00.000"),
            (951_782_400, "2000-02-29T00-00-00.000"),
            (1_709_251_199, "2024-02-29T23-59-59.000"),
            (1_767_366_245, "2026-01-02T15-04-05.000"),
            (4_107_542_400, "2100-03-01T00-00-00.000"),
        ] {
            let stamp = stamp(UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(stamp, wanted);
            assert!(is_stamp(&stamp));
        }
    }

    #[test]
    fn backups_go_by_age_and_number_and_the_others_are_compressed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.log");
        let now = UNIX_EPOCH + Duration::from_secs(1_767_366_245);
        let day = Duration::from_secs(86_400);
        for age in [1, 2, 3, 9] {
            let backup = backup(&path, now - day * age);
            std::fs::write(&backup, format!("{age}")).unwrap();
            std::fs::set_permissions(backup, Permissions::from_mode(0o640)).unwrap();
        }
        for other in ["kv.log", "kv-notes.log", "kv-2026-01-02T15-04-05.000.txt"] {
            std::fs::write(directory.path().join(other), "keep").unwrap();
        }
        let rotation = Rotation { age_max: Some(day * 5), compresses: true, ..Rotation::default() };
        rotation.tidy(&path, now).unwrap();
        let names = || -> Vec<String> {
            let found = backups(&path).unwrap();
            found.iter().map(|(_, path)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            names(),
            ["01", "31", "30"]
                .map(|day| (if day == "01" { "2026-01" } else { "2025-12" }, day))
                .map(|(month, day)| format!("kv-{month}-{day}T15-04-05.000.log.gz"))
        );
        let mut text = String::new();
        let newest = File::open(&backups(&path).unwrap()[0].1).unwrap();
        assert_eq!(newest.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        flate2::read::GzDecoder::new(newest).read_to_string(&mut text).unwrap();
        assert_eq!(text, "1");
        Rotation { backups_max: 1, ..Rotation::default() }.tidy(&path, now).unwrap();
        assert_eq!(names(), ["kv-2026-01-01T15-04-05.000.log.gz"]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_backup_that_cannot_be_compressed_keeps_no_other_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.log");
        let made: Vec<PathBuf> =
            (0..4).map(|second| backup(&path, UNIX_EPOCH + Duration::from_secs(second))).collect();
        for backup in &made {
            std::fs::write(backup, "text").unwrap();
        }
        // Blocks the latest backup: a directory has the name of its temporary file.
        let taken = made[3].with_extension("gz.tmp");
        std::fs::create_dir(&taken).unwrap();
        let rotation = Rotation { backups_max: 2, compresses: true, ..Rotation::default() };
        rotation.tidy(&path, UNIX_EPOCH).unwrap_err();
        let left: Vec<PathBuf> = backups(&path).unwrap().into_iter().map(|(_, path)| path).collect();
        assert_eq!(left, [made[3].clone(), compressed(&made[2])]);
        // A temporary file that cannot be renamed is removed.
        std::fs::remove_dir(&taken).unwrap();
        std::fs::create_dir(compressed(&made[3])).unwrap();
        rotation.tidy(&path, UNIX_EPOCH).unwrap_err();
        assert!(!taken.exists() && made[3].exists());
    }

    #[test]
    fn backups_that_others_remove_meanwhile_are_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.log");
        let rotation = Rotation { backups_max: 1, ..Rotation::default() };
        for _ in 0..20 {
            for second in 0..50 {
                std::fs::write(backup(&path, UNIX_EPOCH + Duration::from_secs(second)), "").unwrap();
            }
            std::thread::scope(|threads| {
                let tidy = || rotation.tidy(&path, UNIX_EPOCH).unwrap();
                threads.spawn(tidy);
                threads.spawn(tidy);
            });
            assert_eq!(backups(&path).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_name_that_is_taken_is_not_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let first = backup(&path, UNIX_EPOCH);
        std::fs::write(&first, "").unwrap();
        assert_eq!(first.file_name().unwrap(), "log-1970-01-01T00-00-00.000");
        assert_eq!(backup(&path, UNIX_EPOCH).file_name().unwrap(), "log-1970-01-01T00-00-00.001");
    }
}
