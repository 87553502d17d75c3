//! Disk contents after a power loss: recorded operations, and the states that they may leave.

pub(crate) mod recorder; // the preloaded recorder
pub(crate) mod recording; // its log

pub(crate) mod loss; // which writes a power cut loses

pub(crate) mod image; // what a disk may hold after a power cut
