//! Random numbers: named streams, all derived from the seed.
//!
//! Each concern draws from a separate stream, independent of all others. So a new kind of fault
//! leaves every seed without it unchanged.
//!
//! Implements SplitMix64 itself, so that a seed from an old report replays the same run with any
//! version of the libraries.

#[derive(Clone, Debug)]
pub struct Chance {
    state: u64,
}

impl Chance {
    #[must_use]
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// Creates the stream called `name` for `seed`.
    #[must_use]
    pub fn stream(seed: u64, name: &str) -> Chance {
        Chance { state: mix(fold(mix(seed), name.as_bytes())) }
    }

    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Draws a number in `low..high`, with a negligible bias.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "an empty range has no numbers");
        low + self.draw() % (high - low)
    }

    /// Draws true with a probability of `times` per thousand.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.draw() % 1000 < times
    }

    pub fn pick_any<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| self.pick(from))
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0, from.len() as u64) as usize]
    }
}

/// Spreads the bits of `value` over all of the result.
#[must_use]
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Folds bytes into a digest, eight at a time: fast, because every message of every run is
/// digested.
#[must_use]
pub fn fold(digest: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut digest = digest ^ (bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in &mut words {
        digest = fold_number(digest, u64::from_le_bytes(word.try_into().expect("a chunk of eight")));
    }
    words.remainder().iter().fold(digest, |digest, byte| fold_number(digest, u64::from(*byte)))
}

#[must_use]
pub fn fold_number(digest: u64, number: u64) -> u64 {
    let spread = (digest ^ number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    spread ^ (spread >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_tells_the_same_story_for_ever() {
        let mut chance = Chance::new(42);
        assert_eq!([chance.draw(), chance.draw()], [0xbdd7_3226_2feb_6e95, 0x28ef_e333_b266_f103]);
    }

    #[test]
    fn streams_of_a_seed_differ_by_name_and_repeat() {
        let draws = |seed, name| Chance::stream(seed, name).draw();
        assert_eq!(draws(1, "a"), draws(1, "a"));
        let distinct: std::collections::BTreeSet<_> =
            [draws(1, "a"), draws(1, "b"), draws(2, "a")].into_iter().collect();
        assert_eq!(distinct.len(), 3);
    }

    #[test]
    fn numbers_stay_within_their_range() {
        let mut chance = Chance::new(1);
        assert!((0..1000).all(|_| (3..7).contains(&chance.within(3, 7))));
        assert!((0..100).all(|_| !chance.per_mille(0)));
    }

    #[test]
    fn a_digest_sees_every_byte_and_the_length() {
        let digests = [&b""[..], b"\0", b"\0\0", b"12345678", b"12345679", b"123456781", b"213456781"]
            .map(|b| fold(7, b));
        let distinct: std::collections::BTreeSet<_> = digests.into_iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }
}
