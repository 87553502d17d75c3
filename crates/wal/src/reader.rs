//! Old entries, read back from the segments: for followers that lag and for the replay after a restart.

use crate::{Fs, LogIndex, OwnedEntry, Position, Result, Term};

/// A cheap handle on the synced part of the log. Cloneable; safe on any thread while the writer appends,
/// releases or restarts the log.
#[derive(Clone, Debug)]
pub struct Reader<F: Fs> {
    fs: F,
}

impl<F: Fs> Reader<F> {
    /// Entries from `from` on, in index order: as many as fit in `payload_bytes_max`, but at least one if
    /// `from` is synced; none if `from` is beyond the synced end.
    ///
    /// Fails with [`crate::Error::Released`] if `from` is no longer kept.
    pub fn read(&self, from: LogIndex, payload_bytes_max: usize) -> Result<Vec<OwnedEntry>> {
        let _ = (from, payload_bytes_max, &self.fs);
        Ok(Vec::new())
    }

    /// Term of a synced entry, or of the start; from memory, without reading the disk. `None` if the index is
    /// outside of start..=last.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        let _ = index;
        None
    }

    /// The position before the first entry kept.
    pub fn start(&self) -> Position {
        Position::default()
    }

    /// The last synced entry, or the start when there is none.
    pub fn last(&self) -> Position {
        Position::default()
    }
}
