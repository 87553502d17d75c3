//! Settings of a log.

use crate::format::segment::PAGE_BYTES;

/// The settings of a log.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// A segment is cut after the group that reaches this size. [`Options::SEGMENT_BYTES`] but for tests.
    pub segment_bytes: u64,
    /// Random, and unknown to all who choose payloads: it makes the frames of the log unpredictable, so that
    /// no payload looks like a frame. Taken when the log is created, or opened for the first time since logs
    /// have a salt; from then on the log keeps its own, and this one is ignored.
    pub salt: [u8; 16],
}

impl WalOptions {
    /// Large enough that a cut (two syncs and a rename) is rare, small enough that the log gives back space
    /// soon.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// Offsets in a segment are 32 bits wide, and a group may begin just below the end.
    const SEGMENT_BYTES_MAX: u64 = 1 << 30;

    pub(crate) fn check(self) {
        assert!(self.segment_bytes > PAGE_BYTES as u64, "a segment needs room after its header");
        assert!(self.segment_bytes <= WalOptions::SEGMENT_BYTES_MAX, "a segment of more than 1 GiB");
    }
}
