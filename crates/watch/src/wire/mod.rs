//! The encoded form of events and responses.

mod event; // mvccpb.Event, fields written by hand

mod parcel; // what one stream has to send, bytes that count until they are dropped

mod encoder; // parcels as gRPC frames

pub use encoder::Encoder;
pub(crate) use event::put_event;
pub(crate) use parcel::{ByteCount, MessagePart, ParcelContent, counted};
pub use parcel::{HeldBytes, Parcel};
