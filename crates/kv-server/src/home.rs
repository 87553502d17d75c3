//! The store at start: opened as it is, finished, rebuilt, or missed.
//!
//! ```text
//!   store                      log begins   then
//!   ─────────────────────────  ───────────  ──────────────────────────────────────────────────────────────
//!   reaches the log's start    anywhere     open it; what was received beside it is no longer needed
//!   behind the log's start     S            a whole store received up to S or later takes its place
//!   damaged, or behind S       at 0         set aside if damaged; the log holds everything: begin empty, replay
//!   damaged, or behind S       later        with others: set aside if damaged, and the leader is asked for a snapshot
//!                                           alone: refused, and left as it was
//! ```
//!
//! * What is damaged is renamed, never deleted: somebody may want to look at it.
//! * A disk that refuses is no damage: the start fails, and the next one finds everything as it was.
//! * A received store is believed only together with a log that begins where it ends: restarting the log is what decides an
//!   install, so a crash before it leaves the old state, one behind it the new.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use mvcc::{Applied, Maintainer, SledBackend, Store, Writer};
use raft_node::StoreState;

use crate::directory::Directory;
use crate::log::causes;

/// An opened store, and whether it holds what the log builds upon.
pub struct Home {
    pub writer: Writer,
    pub store: Store,
    pub maintainer: Maintainer,
    pub state: StoreState,
}

/// What the log says, as far as the store must fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The entry before the first one kept; 0 if the log holds everything.
    pub start: u64,
    pub last: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("open the store")]
    Store(#[from] mvcc::Error),
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "the store in {} cannot be used ({reason}), the log begins only after entry {start}, and this member is alone: nothing is \
         left to rebuild it from. Put back a copy of the whole data directory {} that was made while the member was stopped \
         (`cp -a COPY DIRECTORY`); restoring a backup stream is not built yet in kv-server",
        store.display(),
        directory.display()
    )]
    Unrepairable { store: PathBuf, directory: PathBuf, reason: String, start: u64 },
}

/// What opening came to.
enum Opened {
    Whole(Box<Parts>),
    /// An install had begun when the process stopped.
    Interrupted,
    Damaged(String),
}

type Parts = (Writer, Store, Maintainer);

/// Opens the store that belongs to a log of these bounds. `others` is the number of other members.
pub fn open(directory: &Directory, log: LogBounds, others: usize) -> Result<Home, HomeError> {
    let dir = directory.store_dir();
    let staged = staged(&dir)?.filter(|staged| (log.start..=log.last).contains(&staged.index));
    let found = match try_open(&dir)? {
        Opened::Interrupted => settle(&dir, staged)?,
        other => other,
    };
    let reason = match found {
        Opened::Whole(parts) if parts.1.applied().index >= log.start => {
            mvcc::discard_staged(&dir)?;
            if parts.1.applied().index == 0 && log.last > 0 {
                tracing::info!(entries = log.last, "building the store from the log");
            }
            return Ok(home(*parts, StoreState::Whole));
        }
        Opened::Whole(parts) => {
            let reason = format!("it reaches entry {}", parts.1.applied().index);
            drop(parts);
            if staged.is_some() {
                return finish(&dir);
            }
            reason
        }
        Opened::Damaged(reason) => {
            tracing::error!(store = %dir.display(), error = reason, "the store is damaged");
            if staged.is_some() {
                set_aside(&dir)?;
                return finish(&dir);
            }
            if log.start == 0 || others > 0 {
                set_aside(&dir)?;
            }
            reason
        }
        Opened::Interrupted => "it was being replaced when the process stopped".to_owned(),
    };
    begin_empty(directory, log, others, reason)
}

/// The store that was received wholly, if there is one. A mark that cannot be read is none.
fn staged(dir: &Path) -> Result<Option<Applied>, HomeError> {
    match mvcc::staged_at(dir) {
        Err(error @ mvcc::Error::Corrupt { .. }) => {
            tracing::warn!(error = causes(&error), "a received store is damaged and will be discarded");
            Ok(None)
        }
        other => Ok(other?),
    }
}

/// Ends an install that was cut short: forward if the log waits for it, else back.
fn settle(dir: &Path, staged: Option<Applied>) -> Result<Opened, HomeError> {
    if staged.is_some() {
        mvcc::finish_install(dir)?;
    } else {
        mvcc::discard_staged(dir)?;
    }
    try_open(dir)
}

/// Puts the received store in place. It was checked when it came; it is checked again as it is opened.
fn finish(dir: &Path) -> Result<Home, HomeError> {
    let applied = mvcc::finish_install(dir)?;
    tracing::info!(applied = applied.index, "finished the install of a received snapshot");
    Ok(home(open_parts(dir)?, StoreState::Whole))
}

fn begin_empty(
    directory: &Directory,
    log: LogBounds,
    others: usize,
    reason: String,
) -> Result<Home, HomeError> {
    let dir = directory.store_dir();
    let state = match (log.start, others) {
        (0, _) => {
            tracing::warn!(reason, entries = log.last, "building the store from the log");
            StoreState::Whole
        }
        (start, 0) => {
            let directory = directory.path().to_owned();
            return Err(HomeError::Unrepairable { store: dir, directory, reason, start });
        }
        (start, _) => {
            tracing::warn!(
                reason,
                log_start = start,
                "the store is lost; the leader will be asked for a snapshot"
            );
            StoreState::Lost
        }
    };
    mvcc::discard_staged(&dir)?;
    Ok(home(open_parts(&dir)?, state))
}

fn home((writer, store, maintainer): Parts, state: StoreState) -> Home {
    Home { writer, store, maintainer, state }
}

fn open_parts(dir: &Path) -> Result<Parts, mvcc::Error> {
    mvcc::open(Box::new(SledBackend::open(dir)?), mvcc::Options::default())
}

fn try_open(dir: &Path) -> Result<Opened, HomeError> {
    // The catalogue's engine asserts where it should refuse, so some damage shows as a panic of its own.
    match catch_unwind(AssertUnwindSafe(|| open_parts(dir))) {
        Ok(Ok(parts)) => Ok(Opened::Whole(Box::new(parts))),
        Ok(Err(mvcc::Error::Refused { .. })) => Ok(Opened::Interrupted),
        Ok(Err(error)) if error.is_damage() => Ok(Opened::Damaged(causes(&error))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Ok(Opened::Damaged("its catalogue could not be read".to_owned())),
    }
}

/// Renames the store to the first free `store.damaged-N`.
fn set_aside(dir: &Path) -> Result<(), HomeError> {
    let io_error = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| HomeError::Io { attempt, path, source }
    };
    let parent = dir.parent().expect("a store lies in a data directory");
    let free = (1..)
        .map(|number| dir.with_extension(format!("damaged-{number}")))
        .find(|aside| !aside.exists())
        .expect("numbers do not end");
    std::fs::rename(dir, &free).map_err(io_error("set aside", dir))?;
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(io_error("sync", parent))?;
    tracing::warn!(aside = %free.display(), "the damaged store was set aside; it may be removed when nobody wants to look at it");
    Ok(())
}

#[cfg(test)]
mod tests;
