//! Profiles in pprof's format: `profile.proto` of github.com/google/pprof, gzipped.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use pprof::{Report, Symbol};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<ProfileSample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// Both are places in the table of strings.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ProfileSample {
    /// The innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<SourceLine>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SourceLine {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Encodes the profile of a report with `frequency` samples per second.
pub(super) fn of_cpu(
    report: &Report,
    frequency: i32,
    began: SystemTime,
    length: Duration,
) -> io::Result<Vec<u8>> {
    let mut tables = Tables::default();
    let period = 1_000_000_000 / i64::from(frequency.max(1));
    let count = tables.kind("samples", "count");
    let time = tables.kind("cpu", "nanoseconds");
    let thread = tables.text("thread");
    let mut samples = Vec::new();
    for (frames, count) in &report.data {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        let label = Label { key: thread, text: tables.text(&frames.thread_name) };
        let location_id = sampled(&frames.frames).iter().map(|frame| tables.location(frame)).collect();
        samples.push(ProfileSample { location_id, value: vec![count, count * period], label: vec![label] });
    }
    compressed(Profile {
        sample_type: vec![count, time],
        sample: samples,
        location: tables.locations,
        function: tables.functions,
        string_table: tables.strings,
        time_nanos: nanos(began.duration_since(UNIX_EPOCH).unwrap_or_default()),
        duration_nanos: nanos(length),
        period_type: Some(time),
        period,
    })
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn compressed(profile: Profile) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&profile.encode_to_vec())?;
    encoder.finish()
}

/// Returns a stack without the frames of the sampling itself, which are the innermost.
fn sampled(frames: &[Vec<Symbol>]) -> &[Vec<Symbol>] {
    let is_sampling = |symbol: &Symbol| symbol.name().contains("pprof::");
    let last = frames.iter().rposition(|frame| frame.iter().any(is_sampling));
    &frames[last.map_or(0, |last| last + 1)..]
}

/// Tables of items referred to by samples, without duplicates. Ids of locations and functions start at 1.
struct Tables {
    strings: Vec<String>,
    places: HashMap<String, i64>,
    functions: Vec<Function>,
    function_ids: HashMap<(i64, i64), u64>,
    locations: Vec<Location>,
    location_ids: HashMap<Vec<(u64, i64)>, u64>,
}

impl Default for Tables {
    /// The first string is the empty one.
    fn default() -> Tables {
        Tables {
            strings: vec![String::new()],
            places: HashMap::from([(String::new(), 0)]),
            functions: Vec::new(),
            function_ids: HashMap::new(),
            locations: Vec::new(),
            location_ids: HashMap::new(),
        }
    }
}

impl Tables {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }

    fn kind(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.text(kind), unit: self.text(unit) }
    }

    fn function(&mut self, symbol: &Symbol) -> u64 {
        let (name, filename) = (self.text(&symbol.name()), self.text(&symbol.filename()));
        let next = self.functions.len() as u64 + 1;
        let id = *self.function_ids.entry((name, filename)).or_insert(next);
        if id == next {
            let system_name = self.text(&symbol.sys_name());
            self.functions.push(Function { id, name, system_name, filename });
        }
        id
    }

    /// One frame: the functions that were inlined into each other, the innermost first.
    fn location(&mut self, functions: &[Symbol]) -> u64 {
        let lines: Vec<(u64, i64)> = functions
            .iter()
            .map(|function| (self.function(function), i64::from(function.lineno())))
            .collect();
        let next = self.locations.len() as u64 + 1;
        let id = *self.location_ids.entry(lines.clone()).or_insert(next);
        if id == next {
            let line = |(function_id, line)| SourceLine { function_id, line };
            self.locations.push(Location { id, line: lines.into_iter().map(line).collect() });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use pprof::Frames;

    use super::*;

    fn symbol(name: &str, line: u32) -> Symbol {
        Symbol {
            name: Some(name.as_bytes().to_vec()),
            addr: None,
            lineno: Some(line),
            filename: Some("a.rs".into()),
        }
    }

    fn decoded(bytes: &[u8]) -> Profile {
        let mut plain = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
        Profile::decode(&plain[..]).unwrap()
    }

    #[test]
    fn samples_name_their_functions_and_threads() {
        let frames = Frames {
            frames: vec![
                vec![symbol("trace", 9), symbol("pprof::backtrace::Trace::trace", 9)],
                vec![symbol("inlined", 1), symbol("inner", 2)],
                vec![symbol("outer", 3)],
            ],
            thread_name: "serve".to_owned(),
            thread_id: 1,
            sample_timestamp: UNIX_EPOCH,
        };
        let report = Report { data: HashMap::from([(frames, 3)]), timing: Default::default() };
        let profile = decoded(&of_cpu(&report, 100, UNIX_EPOCH, Duration::from_secs(2)).unwrap());
        let text = |place: i64| profile.string_table[place as usize].as_str();
        assert_eq!(text(0), "");
        assert_eq!((profile.period, profile.duration_nanos), (10_000_000, 2_000_000_000));
        let sample = &profile.sample[0];
        assert_eq!(sample.value, [3, 30_000_000]);
        assert_eq!((text(sample.label[0].key), text(sample.label[0].text)), ("thread", "serve"));
        let named: Vec<Vec<(&str, i64)>> = sample
            .location_id
            .iter()
            .map(|id| {
                let lines = profile.location[*id as usize - 1].line.iter();
                let name = |line: &SourceLine| profile.function[line.function_id as usize - 1].name;
                lines.map(|line| (text(name(line)), line.line)).collect()
            })
            .collect();
        assert_eq!(named, [vec![("inlined", 1), ("inner", 2)], vec![("outer", 3)]]);
    }
}
