//! Encoded events. Each is stored once, for any number of outboxes that refer to it.
//!
//! * What is handed to a stream keeps at most twice its bytes in memory: a small part of a body is copied.
//! * Large bytes are counted until the last slice of them is dropped, also outside of the hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;

use crate::slab::Slab;
use crate::wire::{ByteCount, counted};

/// Bodies in use, and their bytes.
pub(crate) struct Bodies {
    bodies: Slab<SharedBody>,
    bytes: usize,
    /// What is larger is counted wherever it is held.
    small_bytes_max: usize,
    /// Bytes of it anywhere, and of bodies that are here.
    large: Arc<AtomicUsize>,
    large_here: usize,
}

struct SharedBody {
    bytes: Bytes,
    references: u32,
}

/// A part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodySpan {
    pub body: u32,
    pub start: usize,
    pub end: usize,
}

impl Bodies {
    pub fn new(small_bytes_max: usize) -> Bodies {
        Bodies { bodies: Slab::default(), bytes: 0, small_bytes_max, large: Arc::default(), large_here: 0 }
    }

    /// Bytes of all bodies, each counted once.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Large bytes that are held for streams and are no body.
    pub fn outside(&self) -> usize {
        self.large.load(Relaxed).saturating_sub(self.large_here)
    }

    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_bytes_max
    }

    /// Bytes that are counted if they are large.
    pub fn counted(&self, bytes: Vec<u8>) -> Bytes {
        if !self.is_large(bytes.len()) {
            return Bytes::from(bytes);
        }
        let count = ByteCount::new(bytes.len(), [Arc::clone(&self.large)]);
        counted(bytes, count)
    }

    /// Adds a body with one reference: that of the caller.
    pub fn insert(&mut self, bytes: Vec<u8>) -> u32 {
        let bytes = self.counted(bytes);
        self.bytes += bytes.len();
        if self.is_large(bytes.len()) {
            self.large_here += bytes.len();
        }
        self.bodies.insert(SharedBody { bytes, references: 1 })
    }

    /// The bytes of a span, to be handed to a stream.
    pub fn hand_out(&self, span: BodySpan) -> Bytes {
        let body = &self.bodies[span.body].bytes;
        let bytes = span.end - span.start;
        // A slice would keep the whole body in memory. One that counts as small would keep it uncounted.
        if body.len() > 2 * bytes || (self.is_large(body.len()) && !self.is_large(bytes)) {
            return self.counted(body[span.start..span.end].to_vec());
        }
        body.slice(span.start..span.end)
    }

    /// All bytes of a body.
    pub fn bytes_of(&self, body: u32) -> Bytes {
        self.bodies[body].bytes.clone()
    }

    pub fn add_reference(&mut self, body: u32) {
        self.bodies[body].references += 1;
    }

    /// Removes a reference. Without any the body is freed.
    pub fn release(&mut self, body: u32) {
        let references = &mut self.bodies[body].references;
        *references -= 1;
        if *references == 0 {
            let bytes = self.bodies.remove(body).bytes.len();
            self.bytes -= bytes;
            if self.is_large(bytes) {
                self.large_here -= bytes;
            }
        }
    }
}
