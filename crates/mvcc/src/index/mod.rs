//! The key index: every key with its history, in memory. Values are in blocks.
//!
//! The owner holds the lock and limits the work per call.

mod history; // revisions of a key

mod stats; // memory usage of the index
mod tree; // all keys in order, in leaves
mod walk; // bounded walks over keys

mod leased; // live keys that have a lease

pub(crate) use history::{KeyHistory, SupersededRecords, Visible};
pub(crate) use leased::LeasedKeys;
pub(crate) use tree::{Index, NextLeaf};
pub(crate) use walk::IndexWalk;
