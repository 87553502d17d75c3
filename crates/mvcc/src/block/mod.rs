//! Blocks: runs of records that are stored, checksummed and cached together.
//!
//!   OpenBlock ──seal──▶ Decoded ──codec──▶ frame in a block file
//!                          ▲                  │
//!                          └──── BlockCache ◀─┘ when a read needs a block that is not in memory
//!
//! * Revisions ascend within a block and across blocks.
//! * A sealed block never changes. Compaction writes new blocks.

mod records; // records in memory, sealed and not

pub(crate) mod codec; // the stored form of a block
mod dead_list; // superseded records of a block
mod files; // block files: append, sync, remove

mod cache; // decoded blocks for readers
mod sealed; // a sealed block, in memory or in a file
mod table; // lookup of blocks by revision

pub(crate) use cache::BlockCache;
pub(crate) use codec::BlockIdentity;
pub(crate) use dead_list::DeadList;
pub(crate) use files::{BlockFiles, BlockLocation, FileName, HEADER_BYTES, RemovedFiles, check_header_bytes};
pub(crate) use records::{DecodedBlock, OpenBlock, Record, RecordBody};
pub(crate) use sealed::{Block, BlockSource, live_records};
pub(crate) use table::BlockTable;
