//! Windows of sketches, filled by samples and exposed as gauges: a series exists as long as its window.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Method;
use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::{Deserialize, Serialize};

use super::request::{keys_of, named, prefix_of};
use super::sketch::Sketch;

/// One in `SAMPLED` calls is sampled, on average.
pub(super) const SAMPLED: u32 = 32;
/// Length of a window. Exposed values cover the last full window.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Counters per exposed entry: keeps the error of a value below 1/16 of the mean entry.
const COUNTERS_PER_ENTRY: usize = 16;
const CLIENT_BYTES_MAX: usize = 64;

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMeasure {
    Requests,
    Bytes,
    Keys,
}

impl UsageMeasure {
    pub const ALL: [UsageMeasure; 3] = [UsageMeasure::Requests, UsageMeasure::Bytes, UsageMeasure::Keys];
}

/// The sketches of clients, or of prefixes.
#[derive(Debug)]
struct UsageGroup([Sketch; 3]);

impl UsageGroup {
    fn new(capacity: usize) -> UsageGroup {
        UsageGroup([(); 3].map(|()| Sketch::new(capacity)))
    }

    fn add(&mut self, name: &[u8], [requests, bytes, keys]: [u64; 3]) {
        for (sketch, weight) in self.0.iter_mut().zip([requests, bytes, keys]) {
            sketch.add(name, weight);
        }
    }
}

#[derive(Debug)]
struct UsageWindow {
    began: Instant,
    clients: UsageGroup,
    prefixes: UsageGroup,
}

impl UsageWindow {
    fn new(began: Instant, capacity: usize) -> UsageWindow {
        UsageWindow { began, clients: UsageGroup::new(capacity), prefixes: UsageGroup::new(capacity) }
    }
}

#[derive(Debug)]
struct Windows {
    current: UsageWindow,
    last: Option<UsageWindow>,
}

impl Windows {
    /// Starts a new window when the current one is over. The last window is empty after a gap without
    /// calls.
    fn turn(&mut self, now: Instant, capacity: usize) {
        let age = now.saturating_duration_since(self.current.began);
        if age < WINDOW {
            return;
        }
        let ended = std::mem::replace(&mut self.current, UsageWindow::new(now, capacity));
        self.last = (age < 2 * WINDOW).then_some(ended);
    }
}

/// The usage statistics of a member, shared by its calls.
#[derive(Debug)]
pub struct Usage {
    entries: usize,
    windows: Mutex<Windows>,
}

/// A sampled call, recorded when it completes.
#[derive(Debug)]
pub struct SampledCall {
    usage: Arc<Usage>,
    method: Method,
    message: Bytes,
}

/// One client or prefix, with its rates per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Top {
    pub name: String,
    pub requests: f64,
    pub bytes: f64,
    pub keys: f64,
}

/// The largest clients and prefixes of the last window, by requests, then by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    pub clients: Vec<Top>,
    pub prefixes: Vec<Top>,
}

thread_local! {
    /// Remaining calls of this thread until the next sample.
    static UNTIL_SAMPLE: Cell<u32> = const { Cell::new(1) };
}

/// Reports whether a call is sampled. The gap is random, so that alternating kinds of calls are all
/// sampled.
fn is_due() -> bool {
    UNTIL_SAMPLE.with(|left| {
        let is_due = left.get() <= 1;
        left.set(if is_due { rand::random_range(1..2 * SAMPLED) } else { left.get() - 1 });
        is_due
    })
}

impl Usage {
    /// Returns statistics with the given number of clients and prefixes, or None for 0.
    pub fn new(entries: usize) -> Option<Arc<Usage>> {
        let windows =
            Windows { current: UsageWindow::new(Instant::now(), Self::capacity(entries)?), last: None };
        Some(Arc::new(Usage { entries, windows: Mutex::new(windows) }))
    }

    fn capacity(entries: usize) -> Option<usize> {
        (entries > 0).then_some(entries * COUNTERS_PER_ENTRY)
    }

    /// Returns a sample for a starting call, if it is due.
    pub fn sample(self: &Arc<Usage>, method: Method, message: &Bytes) -> Option<SampledCall> {
        is_due().then(|| SampledCall { usage: Arc::clone(self), method, message: message.clone() })
    }

    /// Returns the values of the last full window.
    pub fn rows(&self) -> Rows {
        self.rows_at(Instant::now())
    }

    fn rows_at(&self, now: Instant) -> Rows {
        let mut windows = self.windows.lock();
        windows.turn(now, self.entries * COUNTERS_PER_ENTRY);
        let Some(last) = &windows.last else { return Rows::default() };
        let seconds = (windows.current.began - last.began).as_secs_f64();
        let rows = |group: &UsageGroup| rows(group, self.entries, seconds);
        Rows { clients: rows(&last.clients), prefixes: rows(&last.prefixes) }
    }

    /// Returns the number of exposed entries per measure.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn add(&self, now: Instant, client: &[u8], figures: [u64; 3], prefixes: &[(Vec<u8>, [u64; 3])]) {
        let scaled = |figures: [u64; 3]| figures.map(|figure| figure.saturating_mul(u64::from(SAMPLED)));
        let mut windows = self.windows.lock();
        windows.turn(now, self.entries * COUNTERS_PER_ENTRY);
        let client = &client[..client.len().min(CLIENT_BYTES_MAX)];
        windows.current.clients.add(client, scaled(figures));
        for (prefix, figures) in prefixes {
            windows.current.prefixes.add(prefix, scaled(*figures));
        }
    }
}

/// Returns the union of the largest entries by each measure.
fn rows(group: &UsageGroup, entries: usize, seconds: f64) -> Vec<Top> {
    let largest = group.0.iter().flat_map(|sketch| sketch.largest(entries));
    let names: BTreeSet<Arc<[u8]>> = largest.map(|counter| counter.name).collect();
    let mut rows: Vec<Top> = names
        .iter()
        .map(|name| {
            let [requests, bytes, keys] = [0, 1, 2].map(|at: usize| group.0[at].count(name) as f64 / seconds);
            Top { name: shown(name), requests, bytes, keys }
        })
        .collect();
    rows.sort_by(|a, b| b.requests.total_cmp(&a.requests));
    rows
}

/// Formats a name as text. Invalid UTF-8, control characters and backslashes are escaped, so that different
/// names remain different.
fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character.is_control() || character == '\\' {
                true => text.extend(character.escape_default()),
                false => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

impl SampledCall {
    /// Records the completed call. `frame` is its framed response, if it was sent in one piece.
    pub fn end(self, client: &str, frame: Option<&Bytes>) {
        let SampledCall { usage, method, message } = self;
        let bytes = message.len() + frame.map_or(0, Bytes::len);
        let named = named(method, message);
        let keys = keys_of(method, named.len(), frame);
        let prefixes: Vec<_> = match named.as_slice() {
            [(key, _)] => vec![(prefix_of(key).to_vec(), [1, bytes as u64, keys])],
            several => several.iter().map(|(key, bytes)| (prefix_of(key).to_vec(), [1, *bytes, 1])).collect(),
        };
        usage.add(Instant::now(), client.as_bytes(), [1, bytes as u64, keys], &prefixes);
    }
}

impl Usage {
    /// Writes at most six families with `--metrics-top` series each.
    pub fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let rows = self.rows();
        for (label, mut rows) in [("client", rows.clients), ("prefix", rows.prefixes)] {
            for measure in UsageMeasure::ALL {
                let (what, of): (_, fn(&Top) -> f64) = match measure {
                    UsageMeasure::Requests => ("requests", |top| top.requests),
                    UsageMeasure::Bytes => ("bytes", |top| top.bytes),
                    UsageMeasure::Keys => ("keys", |top| top.keys),
                };
                rows.sort_by(|a, b| of(b).total_cmp(&of(a)));
                let name = format!("kv_server_top_{label}_{what}_per_second");
                let help = format!("The largest by {what}, in the last full window of 10 s, by samples");
                let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
                for top in rows.iter().filter(|top| of(top) > 0.0).take(self.entries()) {
                    let labels = [(label, top.name.as_str())];
                    ConstGauge::new(of(top)).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::PutRequest;
    use prost::Message;

    const NAMES: usize = 20;

    #[test]
    fn one_call_in_thirty_two_is_sampled_on_average() {
        let sampled = (0..320_000).filter(|_| is_due()).count();
        assert!((9_000..11_000).contains(&sampled), "{sampled}");
    }

    #[test]
    fn figures_are_those_of_the_last_full_window_in_a_second() {
        let usage = Usage::new(NAMES).unwrap();
        let began = usage.windows.lock().current.began;
        for _ in 0..10 {
            usage.add(began, b"10.0.0.1", [1, 100, 3], &[(b"a/".to_vec(), [1, 100, 3])]);
        }
        assert_eq!(usage.rows_at(began + WINDOW / 2), Rows::default());
        let rows = usage.rows_at(began + WINDOW);
        let wanted = Top { name: "10.0.0.1".to_owned(), requests: 32.0, bytes: 3200.0, keys: 96.0 };
        assert_eq!((rows.clients, rows.prefixes[0].name.as_str()), (vec![wanted], "a/"));
        assert_eq!(usage.rows_at(began + 4 * WINDOW), Rows::default(), "a silent window has no figures");
    }

    #[test]
    fn hostile_keys_neither_grow_it_nor_hide_others() {
        let usage = Usage::new(NAMES).unwrap();
        let put = |key: String| {
            let put = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
            let sample = SampledCall {
                usage: usage.clone(),
                method: Method::KvPut,
                message: put.encode_to_vec().into(),
            };
            sample.end("10.0.0.1", None);
        };
        for number in 0..20_000 {
            put(format!("{number:08}/x/{}", "k".repeat(200)));
            if number % 100 == 0 {
                put("app/web/1".to_owned());
            }
        }
        put("/".to_owned() + &"m".repeat(1 << 20));
        let windows = usage.windows.lock();
        let prefixes = &windows.current.prefixes.0[0];
        let largest = prefixes.largest(usize::MAX);
        assert_eq!(largest.len(), NAMES * COUNTERS_PER_ENTRY);
        assert!(largest.iter().all(|counter| counter.name.len() <= 64));
        assert!(prefixes.count(b"app/web/") >= 200 * u64::from(SAMPLED));
    }

    #[test]
    fn a_name_is_shown_without_control_characters_and_stays_unique() {
        for (name, text) in [
            (&b"app/"[..], "app/"),
            ("ключ/".as_bytes(), "ключ/"),
            (b"a\n\"<b>", "a\\n\"<b>"),
            (b"\xff/", "\\xff/"),
            (b"\\xff/", "\\\\xff/"),
        ] {
            assert_eq!(shown(name), text);
        }
    }
}
