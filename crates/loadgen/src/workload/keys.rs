//! Keys, byte for byte as in etcd's tool.
//!
//! Its generator uses a single buffer of zero bytes and, for each request, writes a number into the front of
//! it as Go's signed varint (zigzag, low seven bits first). Bytes of a longer, earlier number remain, so
//! after a wrap-around, and in random mode, there are somewhat more distinct keys than numbers in the key
//! space.
//!
//! * Sequential keys are a pure function of the position: workers share no state.
//! * Random keys retain the buffer between requests, one buffer per worker.

use bench_report::model::KeyOrder;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Longest varint of a 64-bit number.
pub const VARINT_BYTES_MAX: usize = 10;

/// Key generator of a worker.
#[derive(Debug)]
pub struct KeySequence {
    space: u64,
    source: KeySource,
}

#[derive(Debug)]
enum KeySource {
    Sequential { last: Varint },
    Random { rng: SmallRng, previous: Vec<u8> },
}

impl KeySequence {
    /// Creates a generator. Only random keys use `seed`.
    pub fn new(order: KeyOrder, space: u64, key_bytes: usize, seed: u64) -> Self {
        assert!(space > 0, "a key space holds at least one key");
        assert!(key_bytes >= varint_bytes_max(space), "the settings refuse keys shorter than their number");
        let source = match order {
            KeyOrder::Sequential => KeySource::Sequential { last: Varint::of(space - 1) },
            KeyOrder::Random => {
                KeySource::Random { rng: SmallRng::seed_from_u64(seed), previous: vec![0; key_bytes] }
            }
        };
        Self { space, source }
    }

    /// Overwrites `key` with the key at `position`.
    pub fn write(&mut self, position: u64, key: &mut [u8]) {
        match &mut self.source {
            KeySource::Sequential { last } => {
                key.fill(0);
                if position >= self.space {
                    // The longest number was written before.
                    key[..last.len].copy_from_slice(last.as_slice());
                }
                let number = Varint::of(position % self.space);
                key[..number.len].copy_from_slice(number.as_slice());
            }
            KeySource::Random { rng, previous } => {
                let number = Varint::of(rng.random_range(0..self.space));
                previous[..number.len].copy_from_slice(number.as_slice());
                key.copy_from_slice(previous);
            }
        }
    }
}

/// Returns the length of the largest number below `space`.
pub fn varint_bytes_max(space: u64) -> usize {
    Varint::of(space - 1).len
}

/// Go's `binary.PutVarint` of a non-negative number.
#[derive(Clone, Copy, Debug)]
struct Varint {
    bytes: [u8; VARINT_BYTES_MAX],
    len: usize,
}

impl Varint {
    fn of(number: u64) -> Self {
        assert!(number <= i64::MAX as u64, "zigzag of a signed number");
        let mut rest = number << 1;
        let mut varint = Self { bytes: [0; VARINT_BYTES_MAX], len: 0 };
        while rest >= 0x80 {
            varint.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        varint.push(rest as u8);
        varint
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn numbers_are_encoded_as_gos_signed_varint() {
        // Right column: binary.PutVarint of Go 1.26.
        for (number, expected) in [
            (0, "00"),
            (1, "02"),
            (63, "7e"),
            (64, "8001"),
            (100, "c801"),
            (8191, "fe7f"),
            (8192, "808001"),
            (99_999, "be9a0c"),
            (1_048_575, "feff7f"),
            (i64::MAX as u64, "feffffffffffffffff01"),
        ] {
            assert_eq!(hex(Varint::of(number).as_slice()), expected, "{number}");
        }
    }

    #[test]
    fn sequential_keys_wrap_around_and_keep_what_the_longest_number_left() {
        let mut keys = KeySequence::new(KeyOrder::Sequential, 65, 4, 0);
        let mut key = [0xff; 4];
        for (position, expected) in [
            (0, "00000000"),
            (1, "02000000"),
            (63, "7e000000"),
            (64, "80010000"),
            (65, "00010000"), // the second byte of number 64 stays
            (66, "02010000"),
            (129, "80010000"),
            (130, "00010000"),
        ] {
            keys.write(position, &mut key);
            assert_eq!(hex(&key), expected, "position {position}");
        }
    }

    #[test]
    fn a_key_space_of_one_is_one_key_in_either_order() {
        for order in [KeyOrder::Sequential, KeyOrder::Random] {
            let mut keys = KeySequence::new(order, 1, 8, 1);
            for position in 0..100 {
                let mut key = [0xff; 8];
                keys.write(position, &mut key);
                assert_eq!(key, [0; 8]);
            }
        }
    }

    #[test]
    fn random_keys_cover_the_space_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut keys = KeySequence::new(KeyOrder::Random, 50, 8, seed);
            (0..2_000)
                .map(|position| {
                    let mut key = [0; 8];
                    keys.write(position, &mut key);
                    key
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        let distinct: std::collections::HashSet<_> = draw(3).into_iter().collect();
        assert_eq!(distinct.len(), 50);
    }
}
