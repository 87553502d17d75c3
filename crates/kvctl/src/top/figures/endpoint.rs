//! One endpoint: its last two documents, and the rates between them.

use std::collections::{BTreeMap, HashMap};

use super::fetch::Absence;
use telemetry::status::Document;

/// A figure of a document that only grows.
pub type Pick = fn(&Document) -> f64;

/// State of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    pub address: String,
    now: Option<Document>,
    /// Previous document of the same process.
    before: Option<Document>,
    /// Why the last request brought no document.
    absence: Option<Absence>,
}

/// Calls of a method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    pub per_second: f64,
    pub failed_per_second: f64,
    /// Calls by the upper bound of their bucket in microseconds.
    pub latency: BTreeMap<u64, f64>,
}

impl Calls {
    pub fn add(&mut self, other: &Calls) {
        self.per_second += other.per_second;
        self.failed_per_second += other.failed_per_second;
        for (end, count) in &other.latency {
            *self.latency.entry(*end).or_default() += count;
        }
    }

    /// The end of the bucket that has this part of the calls up to it, in microseconds.
    pub fn percentile(&self, part: f64) -> Option<f64> {
        let all: f64 = self.latency.values().sum();
        let mut left = all * part;
        let holds = |(end, count): (&u64, &f64)| {
            left -= count;
            (left <= 0.0).then_some(*end as f64)
        };
        let found = self.latency.iter().find_map(holds);
        found.or_else(|| self.latency.keys().last().map(|end| *end as f64)).filter(|_| all > 0.0)
    }
}

impl Endpoint {
    pub fn new(address: String) -> Endpoint {
        Endpoint { address, ..Endpoint::default() }
    }

    /// Records the outcome of a request.
    pub fn record(&mut self, outcome: Result<Document, Absence>) {
        let document = match outcome {
            Ok(document) => document,
            Err(absence) => {
                self.absence = Some(absence);
                self.before = None;
                return;
            }
        };
        let was_silent = self.absence.take().is_some();
        match self.now.take() {
            // A member makes one document in a second at most.
            Some(now) if now.id == document.id && now.uptime_ms == document.uptime_ms && !was_silent => {
                self.now = Some(now);
            }
            Some(now) => {
                let is_older = now.id == document.id && now.uptime_ms < document.uptime_ms;
                self.before = Some(now).filter(|_| is_older && !was_silent);
                self.now = Some(document);
            }
            None => self.now = Some(document),
        }
    }

    /// Returns its document, if the last request succeeded.
    pub fn live(&self) -> Option<&Document> {
        self.now.as_ref().filter(|_| self.absence.is_none())
    }

    /// Returns the latest document, however old.
    pub fn last(&self) -> Option<&Document> {
        self.now.as_ref()
    }

    pub fn absence(&self) -> Option<&Absence> {
        self.absence.as_ref()
    }

    /// Reports whether a request has completed.
    pub fn is_asked(&self) -> bool {
        self.now.is_some() || self.absence.is_some()
    }

    /// Two documents, and the seconds between them.
    fn pair(&self) -> Option<(&Document, &Document, f64)> {
        let (now, before) = (self.live()?, self.before.as_ref()?);
        let milliseconds = now.uptime_ms.saturating_sub(before.uptime_ms);
        (milliseconds > 0).then(|| (now, before, milliseconds as f64 / 1000.0))
    }

    /// How much a figure grows in a second.
    pub fn rate(&self, pick: Pick) -> Option<f64> {
        let (now, before, seconds) = self.pair()?;
        Some(((pick(now) - pick(before)) / seconds).max(0.0))
    }

    /// Calls between the two documents, by method. None if there are not two.
    pub fn calls(&self) -> Option<BTreeMap<&str, Calls>> {
        let (now, before, seconds) = self.pair()?;
        let older: HashMap<&str, _> =
            before.calls.iter().map(|calls| (calls.method.as_str(), calls)).collect();
        let mut all: BTreeMap<&str, Calls> = BTreeMap::new();
        for calls in &now.calls {
            let older = older.get(calls.method.as_str());
            let rate = |now: u64, before: Option<u64>| {
                now.saturating_sub(before.unwrap_or_default()) as f64 / seconds
            };
            let mut latency: BTreeMap<u64, f64> = BTreeMap::new();
            for (end, count) in &calls.latency {
                *latency.entry(*end).or_default() += *count as f64;
            }
            for (end, count) in older.iter().flat_map(|older| &older.latency) {
                *latency.entry(*end).or_default() -= *count as f64;
            }
            latency.retain(|_, count| *count > 0.0);
            let found = Calls {
                per_second: rate(calls.ended, older.map(|older| older.ended)),
                failed_per_second: rate(calls.failed, older.map(|older| older.failed)),
                latency,
            };
            all.entry(&calls.method).or_default().add(&found);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::metrics::CallCounts;

    fn document(uptime_ms: u64, ended: u64, latency: &[(u64, u64)]) -> Document {
        let calls = CallCounts {
            method: "etcdserverpb.KV/Put".to_owned(),
            ended,
            failed: ended / 10,
            latency: latency.to_vec(),
        };
        let mut document =
            Document { uptime_ms, id: "a".to_owned(), calls: vec![calls], ..Document::default() };
        document.counters.puts = ended;
        document
    }

    fn puts(endpoint: &Endpoint) -> Option<f64> {
        endpoint.rate(|document| document.counters.puts as f64)
    }

    #[test]
    fn rates_are_those_between_two_documents_of_one_process() {
        let mut endpoint = Endpoint::new("a:1".to_owned());
        assert!(!endpoint.is_asked());
        endpoint.record(Ok(document(1000, 100, &[(16, 90), (32, 10)])));
        assert_eq!((puts(&endpoint), endpoint.calls()), (None, None));
        endpoint.record(Ok(document(3000, 300, &[(16, 90), (32, 110), (64, 100)])));
        let calls = endpoint.calls().unwrap()["etcdserverpb.KV/Put"].clone();
        assert_eq!((puts(&endpoint), calls.per_second, calls.failed_per_second), (Some(100.0), 100.0, 10.0));
        assert_eq!([0.5, 0.51, 1.0].map(|part| calls.percentile(part)), [Some(32.0), Some(64.0), Some(64.0)]);
        // The same document again changes nothing.
        endpoint.record(Ok(document(3000, 300, &[])));
        assert_eq!(puts(&endpoint), Some(100.0));
        // A restart, a silence, and figures that go back have no rate, or none below 0.
        endpoint.record(Ok(document(500, 10, &[])));
        assert_eq!(puts(&endpoint), None);
        endpoint.record(Ok(document(1500, 0, &[])));
        assert_eq!(
            (puts(&endpoint), endpoint.calls().unwrap().values().next().unwrap().per_second),
            (Some(0.0), 0.0)
        );
        endpoint.record(Err(Absence::Down("refused".to_owned())));
        assert_eq!(
            (puts(&endpoint), endpoint.live().is_some(), endpoint.last().is_some()),
            (None, false, true)
        );
        endpoint.record(Ok(document(2500, 0, &[])));
        assert_eq!(puts(&endpoint), None);
    }

    #[test]
    fn absurd_figures_have_rates() {
        let mut endpoint = Endpoint::default();
        let most = [(u64::MAX, u64::MAX); 3];
        endpoint.record(Ok(document(0, 0, &[(0, u64::MAX)])));
        endpoint.record(Ok(document(u64::MAX, u64::MAX, &most)));
        let calls = endpoint.calls().unwrap().into_values().next().unwrap();
        assert!(calls.per_second.is_finite() && calls.percentile(0.99).is_some());
        assert_eq!(Calls::default().percentile(0.5), None);
    }
}
