//! Commands, as scripts name them.

use bytes::Bytes;

use crate::wire::{BatchBuilder, BatchId};

/// A batch of one command; `a*1000` is a command of 1000 bytes that does not compress.
pub(super) fn batch(word: &str, sequence: u64) -> Bytes {
    let (name, count) = word.split_once('*').unwrap_or((word, "0"));
    let mut command = name.as_bytes().to_vec();
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ sequence;
    while command.len() < count.parse().expect("a length") {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        command.push((state >> 32) as u8);
    }
    let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence }, command.len());
    builder.push(&command);
    builder.finish()
}
