//! Appended entries: the group buffer, the catalogue of synced entries, and their readers.

mod catalogue; // sparse index of synced entries, and the frames of the next sync

mod reader; // reads synced entries from the segments

pub use reader::Reader;

pub(crate) use catalogue::{Catalogue, GROUP_BYTES_MAX, SyncGroup};
