//! The reader's handle.

use bytes::Bytes;

use crate::error::Result;
use crate::range::KeyRange;
use crate::types::{Applied, KvHash, RangeOptions, RangeResult, Size};

/// Cheap to clone; every clone reads the same store.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// The newest main revision; 1 when nothing was ever written.
    pub fn revision(&self) -> i64 {
        todo!()
    }

    /// The revision of the newest compaction; -1 when there was none.
    pub fn compact_revision(&self) -> i64 {
        todo!()
    }

    pub fn applied(&self) -> Applied {
        todo!()
    }

    /// Reads `range` as it was at revision `at` (≤ 0: the newest).
    ///
    /// Errors: `Compacted` below the compact revision (equal is fine), `FutureRevision` beyond the newest, `Corrupt` or
    /// `Io` when a cold block cannot be read back.
    pub fn range(&self, _range: &KeyRange, _at: i64, _options: &RangeOptions) -> Result<RangeResult> {
        todo!()
    }

    /// Hash of the history up to `at` (0: the newest), equal to etcd's HashKV.
    pub fn hash_kv(&self, _at: i64) -> Result<KvHash> {
        todo!()
    }

    pub fn size(&self) -> Size {
        todo!()
    }

    /// A value that is not versioned: members, alarms and the like.
    pub fn item(&self, _key: &[u8]) -> Option<Bytes> {
        todo!()
    }

    /// All items whose key begins with `prefix`, in key order.
    pub fn items(&self, _prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
        todo!()
    }
}
