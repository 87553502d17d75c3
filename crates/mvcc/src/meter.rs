//! Bounds a read while it runs: the memory that it holds, and whether it may continue.
//!
//! A read calls its meter between bounded steps: after at most 1000 keys, and after each block. So a read
//! exceeds its bound by at most one step, and ends within one step after its caller is gone.
//!
//! The caller decides what the bound is and where the memory comes from.

use crate::error::Result;

/// Accounts for one read.
pub trait Meter {
    /// The read holds `pairs` more pairs, which take `bytes` in memory once they are encoded.
    ///
    /// Errors: [`crate::Error::Interrupted`] ends the read, which then releases everything.
    fn hold(&self, pairs: u64, bytes: u64) -> Result<()>;

    /// Whether the read may continue.
    fn check(&self) -> Result<()> {
        self.hold(0, 0)
    }

    /// The total held so far, for [`Meter::release_to`].
    fn held(&self) -> u64 {
        0
    }

    /// Releases everything that was taken since `held` was read.
    fn release_to(&self, _held: u64) {}
}

/// No bound: for reads whose size is known.
impl Meter for () {
    fn hold(&self, _pairs: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
}
