//! Opens the store at start: use it, finish an install, rebuild it, or report it as lost.
//!
//! [`raft_node::choose_store`] decides which store to combine with a log, the same function as in
//! the simulator; its table lists the cases. This module executes the decision.
//!
//! * Corrupt stores are renamed, never deleted, so that they can be examined.
//! * An I/O error is not corruption: the start fails, and the next one finds the files unchanged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use mvcc::{Maintainer, SledBackend, Store, Writer};
use raft_node::{LogIndex, LogPosition, LogSpan, StoreChoice, StoreFound, StoreState};
use sha1::{Digest, Sha1};

use crate::directory::Directory;
use process::files;
use process::log::causes;

/// An opened store, and whether it contains the state that the log depends on.
pub struct OpenedStore {
    pub writer: Writer,
    pub store: Store,
    pub maintainer: Maintainer,
    pub state: StoreState,
}

impl OpenedStore {
    /// Reports whether no entry has been applied to it.
    pub fn is_empty(&self) -> bool {
        self.store.applied().index == LogIndex::ZERO
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error("open the store")]
    Store(#[from] mvcc::Error),
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "the store in {} cannot be used ({reason}), the log begins only after entry {start}, and this \
         member is alone: it cannot be rebuilt. Put back a copy of the whole data directory {} that was \
         made while the member was stopped (`cp -a COPY DIRECTORY`), or make another one from a snapshot \
         with `kvctl restore`",
        store.display(),
        directory.display()
    )]
    Unrepairable { store: PathBuf, directory: PathBuf, reason: String, start: LogIndex },
}

enum OpenOutcome {
    Whole(Box<Parts>),
    /// The process stopped during an install.
    Interrupted,
    Damaged(String),
}

type Parts = (Writer, Store, Maintainer);

/// Opens the store that belongs to this log. `others` is the number of other members.
pub fn open(directory: &Directory, log: LogSpan<'_>, others: usize) -> Result<OpenedStore, OpenStoreError> {
    let dir = directory.store_dir();
    let mut received = staged(&dir)?;
    let opened = match try_open(&dir)? {
        // `settle` installs or discards the received store, so it is not available as a separate
        // choice any more.
        OpenOutcome::Interrupted => settle(&dir, received.take().filter(|at| log.holds(*at)))?,
        other => other,
    };
    let (found, parts, reason) = match opened {
        OpenOutcome::Whole(parts) => {
            let at = parts.1.applied();
            let found = StoreFound::Whole(at);
            (found, Some(parts), format!("it reaches entry {}", at.index))
        }
        OpenOutcome::Damaged(reason) => {
            tracing::error!(store = %dir.display(), error = reason, "store is corrupt");
            (StoreFound::Unusable, None, reason)
        }
        OpenOutcome::Interrupted => {
            (StoreFound::Unusable, None, "it was being replaced when the process stopped".to_owned())
        }
    };
    let choice = raft_node::choose_store(log, found, received, others);
    if let (StoreChoice::Present, Some(parts)) = (choice, parts) {
        mvcc::discard_staged(&dir)?;
        if parts.1.applied().index == LogIndex::ZERO && log.last > LogIndex::ZERO {
            tracing::info!(entries = log.last.0, "rebuilding the store from the log");
        }
        return Ok(opened_store(*parts, StoreState::Whole));
    }
    carry_out(choice, directory, log, found, reason)
}

/// Opens a different store than the existing one, which must be closed.
fn carry_out(
    choice: StoreChoice,
    directory: &Directory,
    log: LogSpan<'_>,
    found: StoreFound,
    reason: String,
) -> Result<OpenedStore, OpenStoreError> {
    let dir = directory.store_dir();
    let start = log.start;
    let state = match choice {
        StoreChoice::Present => unreachable!("a store that is chosen was opened"),
        StoreChoice::Refused => {
            let directory = directory.path().to_owned();
            return Err(OpenStoreError::Unrepairable { store: dir, directory, reason, start });
        }
        StoreChoice::Received => StoreState::Whole,
        StoreChoice::FromLog => {
            tracing::warn!(reason, entries = log.last.0, "rebuilding the store from the log");
            StoreState::Whole
        }
        StoreChoice::FromLeader => {
            let log_start = start.0;
            tracing::warn!(reason, log_start, "store is lost; requesting a snapshot from the leader");
            StoreState::Lost
        }
    };
    if found == StoreFound::Unusable && dir.exists() {
        if choice != StoreChoice::Received {
            // Discard leftovers while the corrupt store exists; otherwise a removed store would be
            // restored to its path.
            mvcc::discard_staged(&dir)?;
        }
        set_aside(&dir)?;
    }
    if choice == StoreChoice::Received {
        return finish(&dir);
    }
    mvcc::discard_staged(&dir)?;
    Ok(opened_store(open_parts(&dir)?, state))
}

/// Returns the position of a completely received store, if there is one. An unreadable marker is
/// ignored.
fn staged(dir: &Path) -> Result<Option<LogPosition>, OpenStoreError> {
    match mvcc::staged_at(dir) {
        Err(error @ mvcc::Error::Corrupt { .. }) => {
            tracing::warn!(error = causes(&error), "received store is corrupt; discarding it");
            Ok(None)
        }
        other => Ok(other?),
    }
}

/// Finishes an interrupted install if the log depends on it; otherwise discards it.
fn settle(dir: &Path, staged: Option<LogPosition>) -> Result<OpenOutcome, OpenStoreError> {
    if staged.is_some() {
        mvcc::finish_install(dir)?;
    } else {
        mvcc::discard_staged(dir)?;
    }
    try_open(dir)
}

/// Installs the received store. It was verified on receipt, and is verified again when opened.
fn finish(dir: &Path) -> Result<OpenedStore, OpenStoreError> {
    let applied = mvcc::finish_install(dir)?;
    tracing::info!(applied = applied.index.0, "finished the install of a received snapshot");
    Ok(opened_store(open_parts(dir)?, StoreState::Whole))
}

fn opened_store((writer, store, maintainer): Parts, state: StoreState) -> OpenedStore {
    OpenedStore { writer, store, maintainer, state }
}

fn open_parts(dir: &Path) -> Result<Parts, mvcc::Error> {
    mvcc::open(Box::new(SledBackend::open(dir)?), mvcc::StoreOptions::default())
}

/// Computes a digest of a store's contents, after an import has created it: keys with their
/// history, the compact revision, leases with their TTLs, users, members. Equal for equal states,
/// and never 0. Reads every block.
pub fn digest(dir: &Path) -> Result<u64, mvcc::Error> {
    let (_writer, store, _maintainer) = open_parts(dir)?;
    let hash = store.hash_kv(0)?;
    let mut digest = Sha1::new();
    digest.update(hash.hash.to_be_bytes());
    digest.update(hash.revision.to_be_bytes());
    digest.update(hash.compact_revision.to_be_bytes());
    for bytes in store.items(b"").iter().flat_map(|(item, value)| [item, value]) {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    }
    let first = digest.finalize().first_chunk().copied().expect("SHA-1 has 20 bytes");
    Ok(u64::from_be_bytes(first).max(1))
}

fn try_open(dir: &Path) -> Result<OpenOutcome, OpenStoreError> {
    // The storage engine panics on some corruption instead of returning an error.
    match catch_unwind(AssertUnwindSafe(|| open_parts(dir))) {
        Ok(Ok(parts)) => Ok(OpenOutcome::Whole(Box::new(parts))),
        Ok(Err(mvcc::Error::Refused { .. })) => Ok(OpenOutcome::Interrupted),
        Ok(Err(error)) if error.is_damage() => Ok(OpenOutcome::Damaged(causes(&error))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Ok(OpenOutcome::Damaged("its catalogue could not be read".to_owned())),
    }
}

fn set_aside(dir: &Path) -> Result<(), OpenStoreError> {
    let io_error = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| OpenStoreError::Io { attempt, path, source }
    };
    let free = (1..)
        .map(|number| dir.with_extension(format!("damaged-{number}")))
        .find(|aside| !aside.exists())
        .expect("numbers do not end");
    std::fs::rename(dir, &free).map_err(io_error("set aside", dir))?;
    files::sync_parent(dir).map_err(io_error("sync the directory of", dir))?;
    tracing::warn!(aside = %free.display(), "corrupt store was moved aside; it can be removed");
    Ok(())
}

#[cfg(test)]
mod tests;
