//! Limits a read in progress: its memory, and whether it may continue.
//!
//! A read calls its meter between bounded steps: after at most 1000 keys, and after each block. It
//! therefore exceeds its limit by at most one step, and stops within a step after its caller has
//! disconnected.
//!
//! The caller defines the limit and provides the memory.

use crate::error::Result;

/// Accounting of a read.
pub trait Meter {
    /// Adds `pairs` pairs, with `bytes` of memory in encoded form, to the read's memory.
    ///
    /// Errors: [`crate::Error::Interrupted`] stops the read, which then releases everything.
    fn hold(&self, pairs: u64, bytes: u64) -> Result<()>;

    /// Checks that the read may continue.
    fn check(&self) -> Result<()> {
        self.hold(0, 0)
    }

    /// Returns the total held so far, for [`Meter::release_to`].
    fn held(&self) -> u64 {
        0
    }

    /// Releases the memory taken since `held` was called.
    fn release_to(&self, _held: u64) {}
}

/// No limit, for reads with a known size.
impl Meter for () {
    fn hold(&self, _pairs: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
}
