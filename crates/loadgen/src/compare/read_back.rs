//! Checks that a store contains the acknowledged writes: a sample of keys is read back individually,
//! round-robin over the members, and all keys are counted.

use super::side::Side;
use crate::client::admin;
use crate::load::{self, Prepared};
use bench_report::model::ReadBack;
use bench_report::suite::SuiteRow;
use bytes::Bytes;
use std::collections::BTreeSet;

/// Enough to find a store that lost one key in twenty; the count finds smaller losses.
const SAMPLES: usize = 60;

/// Written positions of a row over all its runs. Each run starts at position 0 again.
#[derive(Debug, Default)]
pub struct WrittenPositions {
    /// End of the sent positions.
    sent: u64,
    /// Sent positions that were never acknowledged.
    missing: BTreeSet<u64>,
    /// Positions of the last run, whose seed determines the values: their end, and failed ones.
    last: (u64, BTreeSet<u64>),
    /// Acknowledged calls of all runs, and calls with an unknown outcome.
    calls: (u64, u64),
    /// True if more calls failed than positions are recorded.
    lost_track: bool,
}

impl WrittenPositions {
    /// Adds a run that sent positions below `sent`.
    pub fn add(&mut self, sent: u64, failed: Option<&[u64]>) {
        let failed_len = failed.map_or(0, <[u64]>::len) as u64;
        self.calls = (self.calls.0 + sent.saturating_sub(failed_len), self.calls.1 + failed_len);
        let Some(failed) = failed else {
            self.lost_track = true;
            return;
        };
        let failed: BTreeSet<u64> = failed.iter().copied().collect();
        self.last = (sent, failed.clone());
        let known = self.sent;
        self.missing.retain(|position| *position >= sent || failed.contains(position));
        self.missing.extend(failed.into_iter().filter(|position| *position >= known));
        self.sent = self.sent.max(sent);
    }

    /// Returns acknowledged positions of the last run. Later positions of a key overwrite earlier ones, so
    /// only the last round over all keys counts.
    fn acknowledged_last(&self, keys: u64) -> Vec<u64> {
        let (sent, failed) = &self.last;
        let is_certain = |position: &u64| {
            let written = (*position % keys..*sent).step_by(usize::try_from(keys).unwrap_or(usize::MAX));
            !{ written }.any(|position| failed.contains(&position))
        };
        (sent.saturating_sub(keys)..*sent).filter(is_certain).collect()
    }

    fn acknowledged(&self, keys: u64) -> Vec<u64> {
        if keys == 1 {
            // Every position writes the same key.
            return if (self.missing.len() as u64) < self.sent { vec![0] } else { Vec::new() };
        }
        (0..self.sent.min(keys)).filter(|position| !self.missing.contains(position)).collect()
    }
}

/// Reads back the writes of a row.
pub async fn check(
    side: &Side,
    row: &SuiteRow,
    prepared: &Prepared,
    written: &WrittenPositions,
    revision_before: i64,
) -> Result<ReadBack, admin::Error> {
    let mut readers = Vec::new();
    for endpoint in side.endpoints() {
        readers.push(admin::AdminClient::connect(&endpoint).await?);
    }
    let acknowledged = written.acknowledged(row.load.keys);
    let mut result = ReadBack::default();
    let last = written.acknowledged_last(row.load.keys);
    for (key, value) in expected(row, prepared, &last) {
        let member = result.sampled as usize % readers.len();
        let found = readers[member].get(key.clone()).await?;
        result.sampled += 1;
        if found.as_ref() != Some(&value) {
            result.wrong += 1;
            let what = found.map_or("no value".to_owned(), |found| format!("{} other bytes", found.len()));
            let place = &side.members()[member].name;
            result.sample.get_or_insert(format!("key {} on {place}: {what}", hex(&key)));
        }
    }
    if side.is_local() && !written.lost_track {
        let (certain, sent) = if row.load.operation.writes() {
            (acknowledged.len() as u64, written.sent.min(row.load.keys))
        } else {
            (0, 0)
        };
        result.keys_found = readers[0].count_keys().await?.unsigned_abs();
        // The key of range rows exists in every store.
        result.keys_expected = 1 + certain;
        result.keys_uncertain = sent - certain;
        if row.load.operation.writes() {
            (result.revisions_expected, result.revisions_uncertain) = written.calls;
            let grown = readers[0].revision().await? - revision_before;
            result.revisions_found = u64::try_from(grown).unwrap_or(0);
        }
    }
    Ok(result)
}

/// Returns keys and values that must exist: evenly spaced acknowledged ones, including the last.
fn expected(row: &SuiteRow, prepared: &Prepared, acknowledged: &[u64]) -> Vec<(Bytes, Bytes)> {
    if !row.load.operation.writes() {
        let value = vec![b'x'; row.method.stored_value_bytes];
        return vec![(load::read_key(&row.load, prepared), value.into()); 2];
    }
    let samples = acknowledged.len().min(SAMPLES);
    let mut source = load::workload(&row.load, prepared).source(0);
    let mut expected = Vec::new();
    for sample in 1..=samples {
        let position = acknowledged[acknowledged.len() * sample / samples - 1];
        let request = source.request(position);
        expected.extend(source.pairs_of(position, &request));
    }
    expected
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::suite;
    use std::collections::HashSet;

    fn row(id: &str) -> SuiteRow {
        let suites = suite::find(&["docs-3.2".into()]).unwrap();
        let row = suites[0].rows.iter().find(|row| row.id == id).unwrap();
        row.scaled(0.01, None)
    }

    fn all(row: &SuiteRow) -> Vec<u64> {
        (0..row.load.total).collect()
    }

    #[test]
    fn the_keys_to_read_back_are_those_that_a_run_writes() {
        let row = row("put-1000-all");
        let expected = expected(&row, &Prepared::default(), &all(&row));
        let keys: HashSet<_> = expected.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(keys.len(), SAMPLES);
        let mut source = load::workload(&row.load, &Prepared::default()).source(3);
        let last = source.request(row.load.total - 1);
        assert!(
            source.pairs_of(row.load.total - 1, &last).all(|(key, _)| keys.contains(&key)),
            "the last key written is read"
        );
        assert!(expected.iter().all(|(_, value)| value.len() == 256));
    }

    #[test]
    fn one_key_is_read_once_and_a_reading_row_reads_its_own() {
        let fresh = Prepared::default();
        assert_eq!(expected(&row("put-1-one-key"), &fresh, &[0]).len(), 1);
        assert_eq!(expected(&row("range-l-1"), &fresh, &[])[0].0, Bytes::from_static(b"key00000"));
        let existing = Prepared { prefix: "lgen/".into(), ..Prepared::default() };
        assert_eq!(expected(&row("range-l-1"), &existing, &[])[0].0, Bytes::from_static(b"lgen/key"));
    }

    #[test]
    fn a_position_counts_as_written_once_any_run_acknowledged_it() {
        let mut written = WrittenPositions::default();
        written.add(6, Some(&[1, 4]));
        assert_eq!(written.acknowledged(100), [0, 2, 3, 5]);
        written.add(3, Some(&[2]));
        assert_eq!(written.acknowledged(100), [0, 1, 2, 3, 5], "1 was answered, 2 had been before");
        written.add(8, Some(&[4, 7]));
        assert_eq!(written.acknowledged(100), [0, 1, 2, 3, 5, 6]);
        assert_eq!((written.acknowledged(1), written.sent), (vec![0], 8));
        let mut refused = WrittenPositions::default();
        refused.add(2, Some(&[0, 1]));
        assert_eq!(refused.acknowledged(1), [0; 0]);
        refused.add(2, None);
        assert!(refused.lost_track);
    }

    #[test]
    fn values_are_those_of_the_last_run() {
        let mut written = WrittenPositions::default();
        written.add(6, Some(&[1, 4]));
        written.add(5, Some(&[2]));
        assert_eq!(written.acknowledged_last(100), [0, 1, 3, 4]);
        assert_eq!(written.acknowledged_last(3), [3, 4], "position 2 may have written its key");
        assert_eq!(written.calls, (8, 3));
    }
}
