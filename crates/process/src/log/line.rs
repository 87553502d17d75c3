//! An event as one line, in JSON or for a terminal.
//!
//! ```text
//!   json     {"level":"info","ts":"2026-01-02T15:04:05.000000Z","caller":"src/node.rs:7","msg":"…","key":"value"}
//!   console  2026-01-02T15:04:05.000000Z⇥info⇥src/node.rs:7⇥…⇥{"key":"value"}
//! ```
//!
//! Durations and ids are text, numbers are numbers.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Console,
}

/// Target of events after which the process exits. They are written at etcd's level `fatal`.
pub const FATAL: &str = "fatal";

/// Writes events in a format.
pub struct LineFormat(pub LogFormat);

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = LineFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let time = now();
        let caller = caller(metadata.file(), metadata.line());
        let level = if metadata.target() == FATAL { "fatal" } else { level_name(*metadata.level()) };
        let LineFields { message, rest } = fields;
        match self.0 {
            LogFormat::Json => {
                let message = Json(&message);
                write!(
                    writer,
                    r#"{{"level":"{level}","ts":"{time}","caller":"{caller}","msg":{message}{rest}}}"#
                )?;
            }
            LogFormat::Console => {
                write!(writer, "{time}\t{level}\t{caller}\t{message}")?;
                if let Some(rest) = rest.strip_prefix(',') {
                    write!(writer, "\t{{{rest}}}")?;
                }
            }
        }
        writeln!(writer)
    }
}

/// The line that counts lost ones, with its line break.
pub fn of_lost(format: LogFormat, lost: u64) -> String {
    const MESSAGE: &str = "log lines were lost";
    let (time, caller) = (now(), caller(Some(file!()), Some(line!())));
    match format {
        LogFormat::Json => {
            format!(r#"{{"level":"warn","ts":"{time}","caller":"{caller}","msg":"{MESSAGE}","lost":{lost}}}"#)
                + "\n"
        }
        LogFormat::Console => format!("{time}\twarn\t{caller}\t{MESSAGE}\t{{\"lost\":{lost}}}\n"),
    }
}

fn now() -> String {
    let mut time = String::new();
    // Only fails where the clock has no such year.
    let _unwritten = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// Directory and file, as etcd shows them: enough to find the place, short enough to read.
fn caller(file: Option<&str>, line: Option<u32>) -> String {
    let file = file.unwrap_or("?");
    let short = file.rmatch_indices('/').nth(1).map_or(file, |(at, _)| &file[at + 1..]);
    format!("{short}:{}", line.unwrap_or(0))
}

/// An event's fields as the inside of a JSON object, each with its comma before it.
#[derive(Default)]
struct LineFields {
    message: String,
    rest: String,
}

impl LineFields {
    fn push(&mut self, field: &Field, value: impl fmt::Display) {
        // Names as etcd writes them: with dashes.
        let name = field.name().replace('_', "-");
        write!(self.rest, ",{}:{value}", Json(&name)).expect("writing to a string cannot fail");
    }
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.push(field, Json(&text));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.push(field, Json(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }
}

/// A string in JSON's quotes.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&serde_json::to_string(self.0).expect("a string is always JSON"))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, say: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .event_format(LineFormat(format));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), say);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_json_line_is_one_object_with_etcds_keys() {
        let text = logged(LogFormat::Json, || {
            tracing::warn!(member_id = "8e9e", count = 3, quoted = "a\"b", "two\nlines");
        });
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["msg"]), (&"warn".into(), &"two\nlines".into()));
        assert_eq!((&line["member-id"], &line["count"]), (&"8e9e".into(), &3.into()));
        assert_eq!(line["quoted"], "a\"b");
        assert!(line["caller"].as_str().unwrap().starts_with("log/line.rs:"), "{text}");
        assert_eq!(line["ts"].as_str().unwrap().len(), "2006-01-02T15:04:05.000000Z".len(), "{text}");
    }

    #[test]
    fn an_event_that_ends_the_process_has_etcds_level() {
        let text = logged(LogFormat::Json, || tracing::error!(target: FATAL, "the end"));
        assert!(text.starts_with("{\"level\":\"fatal\","), "{text}");
    }

    #[test]
    fn a_console_line_is_separated_by_tabs() {
        let text = logged(LogFormat::Console, || tracing::info!(port = 2379, "listening"));
        let parts: Vec<&str> = text.trim_end().split('\t').collect();
        assert_eq!((parts[1], parts[3], parts[4]), ("info", "listening", "{\"port\":2379}"));
    }

    #[test]
    fn a_line_of_losses_is_a_line_as_the_others() {
        let json = of_lost(LogFormat::Json, 7);
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&line["level"], &line["lost"]), (&"warn".into(), &7.into()));
        assert_eq!(of_lost(LogFormat::Console, 7).trim_end().split('\t').count(), 5);
    }
}
