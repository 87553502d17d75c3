//! Bytes that count in sums until their last slice is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;

/// A part of each of some sums, until this is dropped.
#[derive(Debug)]
pub(crate) struct ByteCount<S: AsRef<[Arc<AtomicUsize>]>> {
    bytes: usize,
    sums: S,
}

impl<S: AsRef<[Arc<AtomicUsize>]>> ByteCount<S> {
    pub fn new(bytes: usize, sums: S) -> ByteCount<S> {
        for sum in sums.as_ref() {
            sum.fetch_add(bytes, Relaxed);
        }
        ByteCount { bytes, sums }
    }
}

impl<S: AsRef<[Arc<AtomicUsize>]>> Drop for ByteCount<S> {
    fn drop(&mut self) {
        for sum in self.sums.as_ref() {
            sum.fetch_sub(self.bytes, Relaxed);
        }
    }
}

struct CountedBytes<B, C> {
    bytes: B,
    _count: C,
}

impl<B: AsRef<[u8]>, C> AsRef<[u8]> for CountedBytes<B, C> {
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
    Bytes::from_owner(CountedBytes { bytes, _count: count })
}
