//! A request becomes the two halves of its stream.

use std::borrow::Cow;
use std::sync::Arc;

use ::http2::Varying;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::heads::RequestHead;
use super::reader::BodyReader;
use super::state::{BegunRequest, Wire};
use super::writer::StreamWriter;

impl BegunRequest {
    /// The head, without the field that [`BegunRequest::varying`] has.
    pub(crate) fn head(&self) -> &RequestHead {
        &self.head
    }

    /// The value of the field that varies, if the head is without it.
    pub(crate) fn varying(&self) -> Option<&[u8]> {
        self.varying.as_ref().map(Varying::as_bytes)
    }

    /// The head as it was sent, with the field that varies by its name.
    pub(crate) fn whole_head(&self, varying: &'static str) -> Cow<'_, RequestHead> {
        match self.varying().and_then(|value| HeaderValue::from_bytes(value).ok()) {
            Some(value) => Cow::Owned(self.head.with(HeaderName::from_static(varying), value)),
            None => Cow::Borrowed(&self.head),
        }
    }

    /// The body, if it is complete.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        self.whole.as_ref()
    }

    /// Both halves of the stream.
    pub(crate) fn open(mut self, wire: &Arc<Wire>) -> (BodyReader, StreamWriter) {
        self.keep();
        let has_entry = self.whole.is_none();
        let reader = match self.whole {
            Some(whole) => BodyReader::whole(whole),
            None => BodyReader::arriving(wire, self.stream),
        };
        (reader, StreamWriter::new(wire, self.stream, has_entry))
    }
}
