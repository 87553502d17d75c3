//! A connection, plain or inside TLS. Which of the two is one branch per read and write.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_rustls::TlsStream;

use super::setup::common_name;
use crate::wire::{Wire, io_of_two_kinds};

pub enum Stream {
    Plain(Wire),
    Tls(Box<TlsStream<Wire>>),
}

impl Stream {
    /// Whether it is inside TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// As [`Wire::has_ended`].
    pub fn has_ended(&self) -> bool {
        match self {
            Stream::Plain(wire) => wire.has_ended(),
            Stream::Tls(stream) => stream.get_ref().0.has_ended(),
        }
    }

    /// The common name of the other side's certificate, which the handshake has verified; empty if it has
    /// none. None if no certificate was shown.
    pub fn common_name(&self) -> Option<String> {
        let Stream::Tls(stream) = self else { return None };
        common_name(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

io_of_two_kinds!(Stream, Plain, Tls);
