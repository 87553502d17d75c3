//! A request becomes the two halves of its stream.

use std::sync::Arc;

use super::heads::RequestHead;
use super::reader::Reader;
use super::state::{Begun, Wire};
use super::writer::Writer;

impl Begun {
    /// The head, and both halves of the stream.
    pub(in super::super) fn open(self, wire: &Arc<Wire>) -> (Arc<RequestHead>, Reader, Writer) {
        let has_entry = self.whole.is_none();
        let reader = match self.whole {
            Some(whole) => Reader::whole(whole),
            None => Reader::arriving(wire, self.stream),
        };
        (self.head, reader, Writer::new(wire, self.stream, has_entry))
    }
}
