//! What the streams have to send.

mod bodies; // encoded events, shared by outboxes
mod large; // one revision that is too large to be encoded at once

mod entries; // what one stream has to send

pub(super) use bodies::{Bodies, BodySpan};
pub(super) use entries::{Events, Outbox, Sizes};
pub(super) use large::{Large, LargeStage};
