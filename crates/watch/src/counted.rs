//! Bytes that count in a sum until their last slice is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;

/// A part of a sum, until this is dropped.
#[derive(Debug)]
pub(crate) struct Count {
    bytes: usize,
    sum: Arc<AtomicUsize>,
}

impl Count {
    pub fn new(bytes: usize, sum: Arc<AtomicUsize>) -> Count {
        sum.fetch_add(bytes, Relaxed);
        Count { bytes, sum }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Relaxed);
    }
}

struct Counted<B, C> {
    bytes: B,
    _count: C,
}

impl<B: AsRef<[u8]>, C> AsRef<[u8]> for Counted<B, C> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// The same bytes, which keep `count` until their last slice is dropped.
pub(crate) fn counted<B, C>(bytes: B, count: C) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
    C: Send + 'static,
{
    Bytes::from_owner(Counted { bytes, _count: count })
}
