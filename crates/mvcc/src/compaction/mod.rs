//! Physical compaction: removes superseded records from the index and from the disk, in bounded steps.
//!
//!   steps ─▶ hash ─▶ prune the index ─▶ sweep the blocks ─▶ reclaim files with holes

mod steps; // the phases in order

mod reclaim; // empties files with holes
mod rewrite; // replaces blocks by rewritten ones
mod sweep; // drops superseded records from blocks

pub(crate) use reclaim::SpaceLimit;
pub(crate) use steps::Compaction;
