//! A histogram of latencies as pairs of a value and its count.

use hdrhistogram::Histogram;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Same precision as in a run.
const DIGITS: u8 = 3;

pub fn serialize<S: Serializer>(histogram: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
    let steps = histogram.iter_recorded();
    let pairs: Vec<_> = steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    pairs.serialize(to)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let mut read = Histogram::new(DIGITS).map_err(D::Error::custom)?;
    for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
        read.record_n(value, count).map_err(D::Error::custom)?;
    }
    Ok(read)
}
