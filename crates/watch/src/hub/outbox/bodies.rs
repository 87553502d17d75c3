//! Encoded events. Each is stored once, for any number of outboxes that refer to it.

use bytes::Bytes;

use crate::slab::Slab;

/// Bodies in use, and their bytes.
#[derive(Default)]
pub(in crate::hub) struct Bodies {
    bodies: Slab<Body>,
    bytes: usize,
}

struct Body {
    bytes: Bytes,
    references: u32,
}

/// A part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) struct Span {
    pub body: u32,
    pub start: usize,
    pub end: usize,
}

impl Bodies {
    /// Bytes of all bodies, each counted once.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a body with one reference: that of the caller.
    pub fn insert(&mut self, bytes: Vec<u8>) -> u32 {
        let bytes = Bytes::from(bytes);
        self.bytes += bytes.len();
        self.bodies.insert(Body { bytes, references: 1 })
    }

    pub fn get(&self, span: Span) -> Bytes {
        self.bodies[span.body].bytes.slice(span.start..span.end)
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
            self.bytes -= self.bodies.remove(body).bytes.len();
        }
    }
}
