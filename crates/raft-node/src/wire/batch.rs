//! A batch: concurrently proposed commands as the payload of a log entry.
//!
//! ```text
//!   1 │ proposer u64 │ boot nonce u64 │ sequence u64 │ count u32 │ { length u32 │ command } × count
//!   2 │ proposer u64 │ boot nonce u64 │ sequence u64 │ count u32 │ bytes when unpacked u32 │ LZ4 of the same
//!   3 │ as 1, with one command, which changes the membership
//!   └ version, 1 byte                little-endian, 29 bytes in all        command: opaque bytes
//! ```
//!
//! * (proposer, nonce, sequence) identifies a batch permanently: no later run of a member uses an earlier
//!   run's nonce. The proposing member recognizes its batch when it applies it, under any leader, and
//!   completes its clients' requests.
//! * A batch is a single entry: its commands commit together or not at all, and are applied sequentially.
//!   Beyond that, each command has a separate outcome.
//! * A large batch is compressed by the proposing member, if that saves an eighth. It stays compressed on
//!   the network, in the log and in the apply queue; it is decompressed where its commands are needed, into
//!   a buffer that they share.
//! * A command is copied into the batch; applying slices the entry, or its decompressed commands.
//! * An entry without payload contains no batch: a new leader appends one.

use base::lz4;
use bytes::Bytes;

use super::codec::MalformedBytes;
use crate::NodeId;

/// Length of the header, before the commands or their compression header.
pub(crate) const HEADER_BYTES: usize = 29;
/// Uncompressed commands.
pub(super) const PLAIN: u8 = 1;
/// Commands compressed as an LZ4 block.
const PACKED: u8 = 2;
/// A single command that changes the membership, never compressed.
const CHANGE: u8 = 3;
/// Length of the size field between header and LZ4 block.
const LENGTH_BYTES: usize = 4;
/// Bytes of a command in a batch in addition to its own.
pub(crate) const COMMAND_OVERHEAD: usize = 4;
/// Smaller batches stay uncompressed: the disk writes at least a page.
const PACKED_FROM_BYTES: usize = 1024;

/// Identity of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct BatchId {
    pub proposer: NodeId,
    pub nonce: u64,
    pub sequence: u64,
}

/// A batch being filled.
pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
}

impl BatchBuilder {
    /// Creates a batch; `capacity` is the total size of its commands, which avoids reallocations.
    pub fn new(id: BatchId, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + capacity);
        bytes.push(PLAIN);
        for number in [id.proposer, id.nonce, id.sequence] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&0u32.to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        BatchBuilder { bytes, count: 0 }
    }

    /// Returns a batch with a single command that changes the membership.
    pub fn change(id: BatchId, command: &[u8]) -> Bytes {
        let mut builder = BatchBuilder::new(id, command.len() + COMMAND_OVERHEAD);
        builder.bytes[0] = CHANGE;
        builder.push(command);
        builder.finish()
    }

    /// Adds a command: the only copy before the log's buffer.
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

    /// Writes the count and completes the batch, compressed if that is worthwhile.
    pub fn finish(mut self) -> Bytes {
        assert!(self.count > 0, "a batch holds at least one command");
        assert!(
            self.bytes.len() >= HEADER_BYTES + self.count as usize * COMMAND_OVERHEAD,
            "a command went missing"
        );
        self.bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&self.count.to_le_bytes());
        let packed = if self.bytes[0] == CHANGE { None } else { packed(&self.bytes) };
        packed.unwrap_or(self.bytes).into()
    }
}

/// Returns the compressed batch; `None` if that saves less than an eighth of the commands.
fn packed(plain: &[u8]) -> Option<Vec<u8>> {
    let (header, commands) = plain.split_at(HEADER_BYTES);
    if commands.len() < PACKED_FROM_BYTES {
        return None;
    }
    let mut block = Vec::new();
    if !lz4::compress(commands, commands.len() / 8 * 7 - LENGTH_BYTES, &mut block) {
        return None;
    }
    // Copies the result, so that the log's cache does not hold the large buffer.
    let mut bytes = Vec::with_capacity(HEADER_BYTES + LENGTH_BYTES + block.len());
    bytes.push(PACKED);
    bytes.extend_from_slice(&header[1..]);
    bytes.extend_from_slice(&u32::try_from(commands.len()).expect("less than a log entry").to_le_bytes());
    bytes.extend_from_slice(&block);
    Some(bytes)
}

/// A parsed batch: its id is known, its commands are not extracted yet.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub id: BatchId,
    /// Claimed number of commands, at least one; verified by [`Batch::commands`].
    pub count: usize,
    /// Its only command changes the membership.
    pub is_change: bool,
    body: BatchBody,
}

#[derive(Clone, Debug)]
enum BatchBody {
    Plain(Bytes),
    Packed { unpacked_bytes: usize, block: Bytes },
}

/// The commands of a batch. Created only by [`Batch::commands`], which verifies every length.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    count: usize,
    bytes: Bytes,
}

impl Batch {
    /// Returns the uncompressed bytes of its commands.
    pub fn bytes(&self) -> usize {
        match &self.body {
            BatchBody::Plain(bytes) => bytes.len(),
            BatchBody::Packed { unpacked_bytes, .. } => *unpacked_bytes,
        }
    }

    /// Parses the header. The cost is independent of the size of the batch.
    pub fn parse(payload: &Bytes) -> Result<Batch, MalformedBytes> {
        if payload.len() < HEADER_BYTES {
            return Err(MalformedBytes("batch header"));
        }
        let number = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
        let id = BatchId { proposer: number(1), nonce: number(9), sequence: number(17) };
        let count = length_at(payload, HEADER_BYTES - 4);
        let body = match payload[0] {
            PLAIN | CHANGE => BatchBody::Plain(payload.slice(HEADER_BYTES..)),
            PACKED if payload.len() >= HEADER_BYTES + LENGTH_BYTES => BatchBody::Packed {
                unpacked_bytes: length_at(payload, HEADER_BYTES),
                block: payload.slice(HEADER_BYTES + LENGTH_BYTES..),
            },
            _ => return Err(MalformedBytes("batch header")),
        };
        let is_change = payload[0] == CHANGE;
        if count == 0 || (is_change && count != 1) {
            return Err(MalformedBytes("batch count"));
        }
        Ok(Batch { id, count, is_change, body })
    }

    /// Decompresses the commands if necessary, and verifies every length: iterating over them cannot fail
    /// afterwards.
    pub fn commands(&self) -> Result<Commands, MalformedBytes> {
        let bytes = match &self.body {
            BatchBody::Plain(bytes) => bytes.clone(),
            BatchBody::Packed { unpacked_bytes, block } => unpacked(*unpacked_bytes, block)?,
        };
        let mut rest = &bytes[..];
        for _ in 0..self.count {
            if rest.len() < COMMAND_OVERHEAD || rest.len() - COMMAND_OVERHEAD < length_at(rest, 0) {
                return Err(MalformedBytes("batch command"));
            }
            rest = &rest[COMMAND_OVERHEAD + length_at(rest, 0)..];
        }
        if !rest.is_empty() {
            return Err(MalformedBytes("batch count"));
        }
        Ok(Commands { count: self.count, bytes })
    }
}

/// Decompresses the commands. Allocates at most the size of a batch, and the maximum output of the block.
fn unpacked(bytes: usize, block: &[u8]) -> Result<Bytes, MalformedBytes> {
    if bytes > wal::PAYLOAD_BYTES_MAX.min(lz4::raw_bytes_max(block.len())) {
        return Err(MalformedBytes("length of a packed batch"));
    }
    lz4::decompress(block, bytes).map(Bytes::from).ok_or(MalformedBytes("packed batch"))
}

impl Commands {
    /// Iterates over the commands in order; all share a buffer.
    pub fn iter(&self) -> impl Iterator<Item = Bytes> + '_ {
        let mut at = 0;
        (0..self.count).map(move |_| {
            let from = at + COMMAND_OVERHEAD;
            at = from + length_at(&self.bytes, at);
            self.bytes.slice(from..at)
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

    fn read(payload: Bytes) -> Result<Vec<Bytes>, MalformedBytes> {
        Ok(Batch::parse(&payload)?.commands()?.iter().collect())
    }

    /// Returns a thousand or more bytes that compress well.
    fn dull() -> [&'static [u8]; 3] {
        [&[b'a'; 900], b"", &[b'b'; 300]]
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

    /// The encoder may change, but this block must stay readable forever: five literals, 1,199 bytes that
    /// repeat the previous byte, five literals.
    #[test]
    fn the_layout_of_a_packed_batch_is_frozen() {
        let name = &batch(&[b""])[1..25];
        let block = [b"\x5f\xb5\x04\0\0z\x01\0", &[255; 4][..], &[160], b"\x50zzzzz"].concat();
        let payload = [&[2], name, &[1, 0, 0, 0], &[0xb9, 0x04, 0, 0], &block].concat();
        assert_eq!(read(payload.into()), Ok(vec![Bytes::from(vec![b'z'; 1205])]));
    }

    #[test]
    fn a_batch_is_packed_only_where_that_saves_something() {
        let noise: Vec<u8> =
            (0..4096u64).map(|i| (i.pow(3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect();
        for (commands, version) in [
            (vec![&[b'a'; 100][..]], PLAIN),
            (dull().to_vec(), PACKED),
            (vec![&noise[..]], PLAIN),
            (vec![&noise[..], &[0; 2048][..]], PACKED),
        ] {
            let payload = batch(&commands);
            let bytes: usize = commands.iter().map(|command| command.len()).sum();
            assert_eq!(payload[0], version, "{bytes} bytes");
            assert_eq!(payload.len() < bytes, version == PACKED, "{bytes} bytes");
            assert_eq!(read(payload).unwrap(), commands);
        }
    }

    #[test]
    fn a_batch_cut_anywhere_is_refused() {
        for whole in [batch(&[b"one", b"", b"three"]), batch(&dull())] {
            for length in 0..whole.len() {
                assert!(read(whole.slice(..length)).is_err(), "cut at {length}");
            }
            let mut longer = whole.to_vec();
            longer.push(0);
            assert!(read(longer.into()).is_err());
        }
    }

    #[test]
    fn the_layout_of_a_change_is_frozen() {
        let command = b"change".repeat(500);
        let change = BatchBuilder::change(ID, &command);
        assert_eq!(change[..], [&[3], &batch(&[b"x"])[1..29], &3000u32.to_le_bytes(), &command].concat());
        assert!(
            Batch::parse(&change).unwrap().is_change && !Batch::parse(&batch(&[b"x"])).unwrap().is_change
        );
        let payload = crate::wire::change_payload(&change);
        assert_eq!(payload[..], [&[0x22, 0xd9, 0x17], &change[..]].concat());
        assert_eq!(crate::wire::change_batch(&payload), Ok(change));
    }

    #[test]
    fn unknown_versions_and_empty_batches_are_refused() {
        let mut other = batch(&[b"x"]).to_vec();
        other[0] = 4;
        assert_eq!(read(other.into()), Err(MalformedBytes("batch header")));
        let mut two = batch(&[b"x", b"y"]).to_vec();
        two[0] = 3;
        assert_eq!(read(two.into()), Err(MalformedBytes("batch count")), "a change has one command");
        let empty = &batch(&[b""])[..HEADER_BYTES - 4];
        let empty = [empty, &[0, 0, 0, 0]].concat();
        assert_eq!(read(empty.into()), Err(MalformedBytes("batch count")));
    }

    #[test]
    fn a_length_that_no_block_could_fill_is_refused() {
        let mut payload = batch(&dull()).to_vec();
        payload[HEADER_BYTES..HEADER_BYTES + LENGTH_BYTES].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(payload.into()), Err(MalformedBytes("length of a packed batch")));
    }

    proptest! {
        #[test]
        fn commands_come_back_in_order(
            commands in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
            repeated in 1..80usize,
        ) {
            let count = commands.len() * repeated;
            let slices: Vec<&[u8]> = commands.iter().map(Vec::as_slice).cycle().take(count).collect();
            let payload = batch(&slices);
            prop_assert_eq!(Batch::parse(&payload).unwrap().id, ID);
            prop_assert_eq!(read(payload).unwrap(), slices);
        }

        #[test]
        fn garbage_is_refused_without_panic(
            garbage in prop::collection::vec(any::<u8>(), 0..80),
            version in PLAIN..=PACKED,
        ) {
            let mut bytes = garbage;
            if let Some(first) = bytes.first_mut() { *first = version; }
            if let Ok(parsed) = Batch::parse(&bytes.into()) {
                let counts = |commands: Commands| commands.iter().count() == parsed.count;
                prop_assert!(parsed.commands().map_or(true, counts));
            }
        }
    }
}
