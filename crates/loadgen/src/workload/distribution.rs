//! Distributions of requests over the records of a key space, and of value sizes.
//!
//! The distributions are those of YCSB's core workloads (Cooper et al., "Benchmarking Cloud Serving Systems
//! with YCSB", SoCC 2010, section 4) with the parameters of its `CoreWorkload` class.
//!
//! * *Zipfian* is scrambled: ranks are drawn over [`ZIPFIAN_ITEMS`] items and hashed onto the records.
//!   Popular records are spread over the key space and stay the same when records are added.
//! * *Latest* is zipfian over the age of a record.
//! * *Hotspot* sends [`HOT_OPERATIONS`] of the requests to [`HOT_RECORDS`] of the records.
//!
//! Independent of keys, requests and time.

use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};
use std::fmt;
use std::str::FromStr;

/// YCSB's zipfian constant.
const ZIPFIAN_EXPONENT: f64 = 0.99;
/// Number of ranks of YCSB's scrambled zipfian distribution, for any number of records.
const ZIPFIAN_ITEMS: f64 = 1e10;
/// YCSB's `hotspotdatafraction`.
const HOT_RECORDS: f64 = 0.2;
/// YCSB's `hotspotopnfraction`.
const HOT_OPERATIONS: f64 = 0.8;

/// Distribution of requests over records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All records have the same probability.
    Uniform,
    /// A few records receive most requests.
    Zipfian,
    /// Like zipfian, with the latest records first.
    Latest,
    /// A part of the records receives most requests; uniform within both parts.
    Hotspot,
    /// Ascending order.
    Sequential,
}

/// Draws records by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Chooser {
    distribution: Distribution,
    /// Number of records that scrambled ranks are hashed onto.
    scrambled_onto: u64,
    ranks: Zipf<f64>,
}

impl Chooser {
    pub fn distribution(&self) -> Distribution {
        self.distribution
    }

    /// Creates a chooser for `records` initial records. With `grows`, a zipfian choice covers as many added
    /// ones.
    pub fn new(distribution: Distribution, records: u64, grows: bool) -> Self {
        assert!(records > 0, "the settings refuse a key space without a record");
        let scrambled_onto = if grows { records.saturating_mul(2) } else { records };
        Self { distribution, scrambled_onto, ranks: zipf(ZIPFIAN_ITEMS) }
    }

    /// Chooses a record below `existing`, for the request at `position`.
    pub fn choose(&self, position: u64, existing: u64, random: &mut SmallRng) -> u64 {
        assert!(existing > 0, "there is a record to choose");
        match self.distribution {
            Distribution::Sequential => position % existing,
            Distribution::Uniform => random.random_range(0..existing),
            Distribution::Latest => existing - 1 - rank(zipf(existing as f64), random).min(existing - 1),
            Distribution::Hotspot => {
                let hot = ((existing as f64 * HOT_RECORDS) as u64).max(1);
                let is_hot = hot == existing || random.random_bool(HOT_OPERATIONS);
                if is_hot { random.random_range(0..hot) } else { random.random_range(hot..existing) }
            }
            // Draws beyond the existing records are repeated, which preserves the popularity of the
            // remaining ones.
            Distribution::Zipfian => loop {
                let number = scrambled(rank(self.ranks, random)) % self.scrambled_onto;
                if number < existing {
                    return number;
                }
            },
        }
    }
}

fn zipf(items: f64) -> Zipf<f64> {
    Zipf::new(items, ZIPFIAN_EXPONENT).expect("one item at least, and a positive exponent")
}

/// Draws a rank, starting at 0.
fn rank(ranks: Zipf<f64>, random: &mut SmallRng) -> u64 {
    (ranks.sample(random) as u64).saturating_sub(1)
}

/// Hashes a number like YCSB: FNV-1a of its eight bytes, lowest first, as an absolute value.
pub fn scrambled(number: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let hash = number.to_le_bytes().into_iter().fold(OFFSET_BASIS, step);
    (hash as i64).unsigned_abs()
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "uniform" => Distribution::Uniform,
            "zipfian" => Distribution::Zipfian,
            "latest" => Distribution::Latest,
            "hotspot" => Distribution::Hotspot,
            "sequential" => Distribution::Sequential,
            _ => return Err("expected uniform, zipfian, latest, hotspot or sequential".into()),
        })
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
            Distribution::Hotspot => "hotspot",
            Distribution::Sequential => "sequential",
        })
    }
}

/// Sizes of values, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Between both bounds, with the same probability.
    Uniform { least: usize, most: usize },
    /// Between both bounds, smaller ones more frequent, by YCSB's zipfian constant.
    Zipfian { least: usize, most: usize },
    /// Each size with its weight.
    Parts(Vec<(usize, u32)>),
}

const SIZES: &str = "expected BYTES, LEAST..MOST, zipfian:LEAST..MOST or BYTES=PARTS,…";

impl Sizes {
    pub fn one(bytes: usize) -> Self {
        Self::Uniform { least: bytes, most: bytes }
    }

    pub fn choose(&self, random: &mut SmallRng) -> usize {
        match self {
            Sizes::Uniform { least, most } => random.random_range(*least..=*most),
            Sizes::Zipfian { least, most } => {
                let sizes = (most - least + 1) as f64;
                least + (rank(zipf(sizes), random) as usize).min(most - least)
            }
            Sizes::Parts(parts) => {
                let all: u64 = parts.iter().map(|(_, part)| u64::from(*part)).sum();
                let mut rest = random.random_range(0..all);
                let chosen = parts.iter().find(|(_, part)| {
                    let is_in = rest < u64::from(*part);
                    rest = rest.saturating_sub(u64::from(*part));
                    is_in
                });
                chosen.map_or(0, |(bytes, _)| *bytes)
            }
        }
    }

    /// Returns the size of the largest value.
    pub fn most(&self) -> usize {
        match self {
            Sizes::Uniform { most, .. } | Sizes::Zipfian { most, .. } => *most,
            Sizes::Parts(parts) => parts.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }
}

/// Parses `100..2000`, or a single number for both bounds.
fn ends(text: &str) -> Result<(usize, usize), String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let bytes = |text: &str| text.parse::<usize>().map_err(|_| SIZES.to_owned());
    match (bytes(least)?, bytes(most)?) {
        (least, most) if least > most => Err(format!("{least} is more than {most}")),
        ends => Ok(ends),
    }
}

impl FromStr for Sizes {
    type Err = String;

    /// Parses `1000`, `100..2000`, `zipfian:100..2000`, or `100=90,65536=10`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(text) = text.strip_prefix("zipfian:") {
            return ends(text).map(|(least, most)| Self::Zipfian { least, most });
        }
        if !text.contains('=') {
            return ends(text).map(|(least, most)| Self::Uniform { least, most });
        }
        let part = |part: &str| {
            let (bytes, part) = part.split_once('=')?;
            Some((bytes.parse().ok()?, part.parse().ok()?))
        };
        let parts: Option<Vec<(usize, u32)>> = text.split(',').map(part).collect();
        let parts = parts.ok_or(SIZES)?;
        if parts.iter().all(|(_, part)| *part == 0) {
            return Err("the parts add up to nothing".into());
        }
        Ok(Self::Parts(parts))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Uniform { least, most } if least == most => write!(formatter, "{least}"),
            Sizes::Uniform { least, most } => write!(formatter, "{least}..{most}"),
            Sizes::Zipfian { least, most } => write!(formatter, "zipfian:{least}..{most}"),
            Sizes::Parts(parts) => {
                let parts = parts.iter().map(|(bytes, part)| format!("{bytes}={part}"));
                formatter.write_str(&parts.collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const DRAWS: usize = 200_000;

    fn counts(distribution: Distribution, records: u64, existing: u64) -> Vec<usize> {
        let chooser = Chooser::new(distribution, records, existing > records);
        let mut random = SmallRng::seed_from_u64(7);
        let mut counts = vec![0; existing as usize];
        for position in 0..DRAWS as u64 {
            counts[chooser.choose(position, existing, &mut random) as usize] += 1;
        }
        counts
    }

    /// Asserts that the count of an outcome with this probability is within four standard deviations.
    fn assert_near(count: usize, probability: f64, what: &str) {
        let expected = DRAWS as f64 * probability;
        let deviation = (expected * (1.0 - probability)).sqrt();
        assert!((count as f64 - expected).abs() <= 4.0 * deviation, "{what}: {count} instead of {expected}");
    }

    #[test]
    fn the_most_popular_records_have_the_shares_of_ycsbs_zipfian_constant() {
        // YCSB's class `ScrambledZipfianGenerator` gives the sum of 1 / rank^0.99 over 10^10 ranks.
        const SUM_OF_RANKS: f64 = 26.469_028_201_783_02;
        // Enough records to make collisions of popular ranks unlikely.
        let counts = counts(Distribution::Zipfian, 1_000_000, 1_000_000);
        for rank in 0..5u64 {
            let record = scrambled(rank) % 1_000_000;
            let expected = 1.0 / ((rank + 1) as f64).powf(0.99) / SUM_OF_RANKS;
            assert_near(counts[record as usize], expected, &format!("rank {rank}"));
        }
    }

    #[test]
    fn popular_records_stay_popular_when_records_are_added() {
        let popular = |existing| {
            let counts = counts(Distribution::Zipfian, 1000, existing);
            (0..1000).max_by_key(|&record| counts[record])
        };
        assert_eq!(popular(1001), popular(1900));
    }

    #[test]
    fn the_newest_record_is_the_most_popular_of_the_latest() {
        let counts = counts(Distribution::Latest, 1000, 1000);
        let sum: f64 = (1..=1000).map(|rank| 1.0 / f64::from(rank).powf(0.99)).sum();
        for age in 0..4 {
            let expected = 1.0 / ((age + 1) as f64).powf(0.99) / sum;
            assert_near(counts[999 - age], expected, &format!("age {age}"));
        }
    }

    #[test]
    fn a_hotspot_draws_four_of_five_requests_to_a_fifth_of_the_records() {
        let counts = counts(Distribution::Hotspot, 1000, 1000);
        assert_near(counts[..200].iter().sum(), 0.8, "hot records");
        assert!(counts.iter().all(|&count| count > 0), "cold records are drawn as well");
    }

    #[test]
    fn a_uniform_draw_prefers_no_record_and_a_sequential_one_takes_turns() {
        for count in counts(Distribution::Uniform, 10, 10) {
            assert_near(count, 0.1, "uniform");
        }
        assert_eq!(counts(Distribution::Sequential, 10, 10), [DRAWS / 10; 10]);
    }

    #[test]
    fn one_record_is_always_drawn() {
        for name in ["uniform", "zipfian", "latest", "hotspot", "sequential"] {
            let distribution: Distribution = name.parse().unwrap();
            assert_eq!(distribution.to_string(), name);
            assert_eq!(counts(distribution, 1, 1), [DRAWS]);
        }
        assert!("zipf".parse::<Distribution>().is_err());
    }

    #[test]
    fn numbers_are_scattered_as_by_ycsbs_hash() {
        // FNV-1a over eight bytes, lowest first; the second column is its absolute value as a signed number.
        for (number, expected) in [(0, 6_284_781_860_667_377_211), (1, 8_517_097_267_634_966_620)] {
            assert_eq!(scrambled(number), expected, "{number}");
        }
    }

    #[test]
    fn sizes_are_one_number_all_between_two_or_parts() {
        let mut random = SmallRng::seed_from_u64(1);
        for (text, ends, mean) in [
            ("1000", 1000..=1000, 1000.0),
            ("10..20", 10..=20, 15.0),
            ("zipfian:1..1000", 1..=1000, 133.0),
            ("100=90,1000=10", 100..=1000, 190.0),
            ("0=1,8=0", 0..=0, 0.0),
        ] {
            let sizes: Sizes = text.parse().unwrap();
            assert_eq!(sizes.to_string(), text);
            let drawn: Vec<_> = (0..20_000).map(|_| sizes.choose(&mut random)).collect();
            assert!(drawn.iter().all(|bytes| ends.contains(bytes)), "{text}");
            assert!(*ends.end() <= sizes.most());
            let found = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            assert!((found - mean).abs() <= mean * 0.1, "{text}: {found}");
        }
        for text in ["", "x", "5..", "9..5", "-1", "zipfian:9..5", "1=x", "1=0,2=0", "1,2"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
