//! Bytes that a client chooses in order to stop a member: they look like frames of the log.

use crate::LogPosition;
use crate::format::frame::{self, Header, Type};
use crate::format::segment;

/// A frame without a payload for segment `sequence` of a log with this identity, as an attacker who knows all
/// but the salt of that log can make it. It claims that everything before `group` was synced. `noise` fills
/// what an adversary is free to choose, so that packing does not change the bytes.
#[must_use]
pub fn forged(identity: &[u8], sequence: u64, group: u32, noise: &mut dyn FnMut() -> u64) -> Vec<u8> {
    let header = Header {
        type_: Type::Entry,
        kind: noise() as u8,
        length: 0,
        group,
        previous: noise() as u32,
        position: LogPosition::new(noise(), noise()),
    };
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, &segment::seed(identity, None, sequence), &header, &[]);
    bytes
}
