//! A batch: the commands that waited together, as the payload of one log entry.
//!
//! ```text
//!   version 1 │ proposer u64 │ boot nonce u64 │ sequence u64 │ count u32 │ { length u32 │ command } × count
//!      1 byte                          little-endian, 29 bytes in all        command: opaque bytes
//! ```
//!
//! * (proposer, nonce, sequence) names a batch for ever: no later run of a member uses an earlier run's nonce.
//!   The member that made a batch recognises it so when it applies it, whoever led, and answers its own clients.
//! * A batch is one entry: its commands commit together or not at all, and are applied one after another. It promises no more than
//!   that; each command has an outcome of its own.
//! * A command is copied once, into the batch; applying slices the entry and copies nothing.
//! * An entry without payload holds no batch: a new leader appends one.

use bytes::Bytes;

use crate::codec::Malformed;

pub(crate) const HEADER_BYTES: usize = 29;
const VERSION: u8 = 1;
/// What a command costs in a batch beyond its own bytes.
pub(crate) const COMMAND_OVERHEAD: usize = 4;

/// Which batch this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct BatchId {
    pub proposer: u64,
    pub nonce: u64,
    pub sequence: u64,
}

/// A batch being filled.
pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
}

impl BatchBuilder {
    /// Begins a batch; `capacity` is what its commands will take, so that the buffer never moves.
    pub fn new(id: BatchId, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + capacity);
        bytes.push(VERSION);
        for number in [id.proposer, id.nonce, id.sequence] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&0u32.to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        BatchBuilder { bytes, count: 0 }
    }

    /// Adds a command: the only copy of it on its way into the log's buffer.
    pub fn push(&mut self, command: &[u8]) {
        assert!(
            self.bytes.len() + command.len() < wal::PAYLOAD_BYTES_MAX,
            "a batch that the log would not take"
        );
        let length = u32::try_from(command.len()).expect("a command is bounded well below 4 GiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(command);
        self.count += 1;
    }

    /// Writes the count, now that it is known, and closes the batch.
    pub fn finish(mut self) -> Bytes {
        assert!(self.count > 0, "a batch holds at least one command");
        assert!(
            self.bytes.len() >= HEADER_BYTES + self.count as usize * COMMAND_OVERHEAD,
            "a command went missing"
        );
        self.bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&self.count.to_le_bytes());
        self.bytes.into()
    }
}

/// A batch read back. Made only by [`Batch::parse`], which has checked every length.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub id: BatchId,
    pub count: usize,
    commands: Bytes,
}

impl Batch {
    /// Checks the whole payload; reading the commands afterwards cannot fail.
    pub fn parse(payload: &Bytes) -> Result<Batch, Malformed> {
        if payload.len() < HEADER_BYTES || payload[0] != VERSION {
            return Err(Malformed("batch header"));
        }
        let number = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
        let id = BatchId { proposer: number(1), nonce: number(9), sequence: number(17) };
        let count = length_at(payload, 25);
        let commands = payload.slice(HEADER_BYTES..);
        let mut rest = &commands[..];
        for _ in 0..count {
            if rest.len() < COMMAND_OVERHEAD || rest.len() - COMMAND_OVERHEAD < length_at(rest, 0) {
                return Err(Malformed("batch command"));
            }
            rest = &rest[COMMAND_OVERHEAD + length_at(rest, 0)..];
        }
        if count == 0 || !rest.is_empty() {
            return Err(Malformed("batch count"));
        }
        Ok(Batch { id, count, commands })
    }

    /// The commands in order, each sharing the entry's buffer.
    pub fn commands(&self) -> impl Iterator<Item = Bytes> + '_ {
        let mut at = 0;
        (0..self.count).map(move |_| {
            let from = at + COMMAND_OVERHEAD;
            at = from + length_at(&self.commands, at);
            self.commands.slice(from..at)
        })
    }
}

fn length_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: BatchId = BatchId { proposer: 3, nonce: 0x0102_0304_0506_0708, sequence: 9 };

    fn batch(commands: &[&[u8]]) -> Bytes {
        let mut builder = BatchBuilder::new(ID, 0);
        commands.iter().for_each(|command| builder.push(command));
        builder.finish()
    }

    #[test]
    fn the_layout_is_frozen() {
        let expected = [
            &[1][..],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[8, 7, 6, 5, 4, 3, 2, 1],
            &[9, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0],
            &[2, 0, 0, 0, b'a', b'b'],
            &[0, 0, 0, 0],
        ];
        assert_eq!(batch(&[b"ab", b""]), expected.concat());
    }

    #[test]
    fn a_batch_cut_anywhere_is_refused() {
        let whole = batch(&[b"one", b"", b"three"]);
        for length in 0..whole.len() {
            assert!(Batch::parse(&whole.slice(..length)).is_err(), "cut at {length}");
        }
        let mut longer = whole.to_vec();
        longer.push(0);
        assert!(Batch::parse(&longer.into()).is_err());
    }

    #[test]
    fn unknown_versions_and_empty_batches_are_refused() {
        let mut other = batch(&[b"x"]).to_vec();
        other[0] = 2;
        assert_eq!(Batch::parse(&other.into()).map(|b| b.count), Err(Malformed("batch header")));
        let empty = &batch(&[b""])[..HEADER_BYTES - 4];
        let empty = [empty, &[0, 0, 0, 0]].concat();
        assert_eq!(Batch::parse(&empty.into()).map(|b| b.count), Err(Malformed("batch count")));
    }

    proptest! {
        #[test]
        fn commands_come_back_in_order(commands in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20)) {
            let slices: Vec<&[u8]> = commands.iter().map(Vec::as_slice).collect();
            let parsed = Batch::parse(&batch(&slices)).unwrap();
            prop_assert_eq!(parsed.id, ID);
            prop_assert_eq!(parsed.commands().map(|c| c.to_vec()).collect::<Vec<_>>(), commands);
        }

        #[test]
        fn garbage_is_refused_without_panic(garbage in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = garbage;
            if let Some(first) = bytes.first_mut() { *first = VERSION; }
            if let Ok(parsed) = Batch::parse(&bytes.into()) {
                prop_assert_eq!(parsed.commands().count(), parsed.count);
            }
        }
    }
}
