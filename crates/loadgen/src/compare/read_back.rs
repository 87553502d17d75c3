//! Whether a store holds what it acknowledged: some keys read back one by one, from every member in turn, and all of them
//! counted.

use super::side::Side;
use crate::admin;
use crate::report::model::ReadBack;
use crate::suite::{READ_KEY, Row};
use bytes::Bytes;

/// Enough to find a store that lost one key in twenty; counting finds the others.
const SAMPLES: u64 = 60;

/// Reads back what a row wrote. `written` positions of it were sent and acknowledged at least once.
pub async fn check(side: &Side, row: &Row, written: u64) -> Result<ReadBack, admin::Error> {
    let mut readers = Vec::new();
    for endpoint in side.endpoints() {
        readers.push(admin::Reader::open(endpoint).await?);
    }
    let mut result = ReadBack::default();
    for (key, value) in expected(row, written) {
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
    if side.is_local() {
        result.keys_found = readers[0].count_keys().await?.unsigned_abs();
        // The key that range rows read is in every store.
        result.keys_expected = 1 + if row.writes() { written.min(row.spec.keys) } else { 0 };
    }
    Ok(result)
}

/// Keys and values that must be there: spread evenly over what was written, the last one included.
fn expected(row: &Row, written: u64) -> Vec<(Bytes, Bytes)> {
    if !row.writes() {
        return vec![(Bytes::from_static(READ_KEY), row.read_value()); 2];
    }
    let distinct = written.min(row.spec.keys);
    let samples = distinct.min(SAMPLES);
    let workload = row.workload();
    let mut source = workload.source(0);
    let value = Bytes::from(workload.value());
    let mut expected = Vec::new();
    for sample in 1..=samples {
        let request = source.request(distinct * sample / samples - 1);
        expected.extend(source.keys_of(&request).map(|key| (key, value.clone())));
    }
    expected
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;
    use std::collections::HashSet;

    fn row(id: &str) -> Row {
        let suites = suite::find(&["docs-3.2".into()]).unwrap();
        let row = suites[0].rows.iter().find(|row| row.id == id).unwrap();
        row.scaled(0.01, None)
    }

    #[test]
    fn the_keys_to_read_back_are_those_that_a_run_writes() {
        let row = row("put-1000-all");
        let expected = expected(&row, row.spec.total);
        let keys: HashSet<_> = expected.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(keys.len(), SAMPLES as usize);
        let mut source = row.workload().source(3);
        let last = source.request(row.spec.total - 1);
        assert!(source.keys_of(&last).all(|key| keys.contains(&key)), "the last key written is read");
        assert!(expected.iter().all(|(_, value)| value.len() == 256));
    }

    #[test]
    fn one_key_is_read_once_and_a_reading_row_reads_its_own() {
        assert_eq!(expected(&row("put-1-one-key"), 100).len(), 1);
        assert_eq!(expected(&row("range-l-1"), 100)[0].0, Bytes::from_static(READ_KEY));
    }

    #[test]
    fn a_run_that_was_cut_short_is_asked_for_what_it_sent_only() {
        let row = row("put-1000-all");
        let mut source = row.workload().source(0);
        let request = source.request(4);
        let last: Vec<_> = source.keys_of(&request).collect();
        assert_eq!(expected(&row, 5).last().map(|(key, _)| key.clone()), last.first().cloned());
    }
}
