//! Checkpoints: making the state durable, and loading it at start.

pub(crate) mod catalogue; // entries of the catalogue
mod durable; // the durable side of a store
mod writer; // writes checkpoints

mod index_builder; // rebuilds the index from records
mod recovery; // loads a store

pub(crate) use catalogue::{BlockEntry, CatalogueEntry, Digest, Marks, block_entry, crc_of, item_entry};
pub(crate) use durable::{DurableStore, StoredItem};
pub(crate) use recovery::{RecoveredStore, load};
pub(crate) use writer::CheckpointWriter;
