//! The encoded form of events and responses.

mod event; // mvccpb.Event, fields written by hand

mod parcel; // what one stream has to send

mod encoder; // parcels as gRPC frames

pub use encoder::Encoder;
pub(crate) use event::put_event;
pub use parcel::{HeldBytes, Parcel};
pub(crate) use parcel::{MessagePart, ParcelContent};
