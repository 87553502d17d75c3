//! Disk contents after a power loss: recorded operations, and the states that they may leave.

pub(crate) mod recorder; // the preloaded recorder
pub(crate) mod recording; // its log format

pub(crate) mod loss; // lost writes of a power loss

pub(crate) mod image; // possible disk contents after a power loss
