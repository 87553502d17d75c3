//! Disks after a power cut: what was done to them, and what they may hold.

pub(crate) mod recorder; // the preloaded recorder
pub(crate) mod recording; // its log

pub(crate) mod loss; // which writes a power cut loses

pub(crate) mod image; // what a disk may hold after a power cut
