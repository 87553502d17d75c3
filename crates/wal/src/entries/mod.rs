//! Appended entries: the group buffer, the catalogue of synced entries, and their readers.

mod catalogue; // where the synced entries are, and frames that wait for the next sync

mod reader; // old entries, read back from the segments

pub use reader::Reader;

pub(crate) use catalogue::{Catalogue, GROUP_BYTES_MAX, SyncGroup};
