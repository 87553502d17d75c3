//! What the streams have to send.

mod bodies; // encoded events, shared by outboxes

mod entries; // what one stream has to send, a large revision in parts

pub(super) use bodies::{Bodies, BodySpan};
pub(super) use entries::{Events, Large, LargeStage, Outbox, Sizes};
