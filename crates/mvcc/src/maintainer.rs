//! The background half: checkpoints and physical compaction.

use crate::error::Result;
use crate::types::{CompactProgress, Persisted};

/// Only one exists per store; the checkpoint thread owns it. After an error it is poisoned and the member must stop.
pub struct Maintainer {}

impl Maintainer {
    /// Makes the state at the newest entry border durable, in one atomic step. If the writer is inside an entry, that
    /// is the last checkpoint it offered; the next end of an entry then offers another.
    pub fn persist(&mut self) -> Result<Persisted> {
        todo!()
    }

    /// One bounded step of physical compaction: at most `keys_max` keys are visited under the lock. Persists first
    /// when the compaction itself is not durable yet.
    pub fn compact_step(&mut self, _keys_max: usize) -> Result<CompactProgress> {
        todo!()
    }
}
