//! Output on stdout: as `name=value` for people, as JSON for programs. Counts corruptions.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::{Map, Value};

/// Maximum length of texts in the output for people; longer ones are truncated. JSON is not truncated.
const TEXT_MAX: usize = 120;

pub struct InspectReport<W> {
    out: W,
    json: bool,
    damages: u64,
    /// First write error. Later lines are dropped.
    failed: Option<io::Error>,
}

/// A line of output.
#[derive(Debug)]
pub struct ReportLine {
    kind: &'static str,
    /// Fields in output order.
    fields: Vec<(String, Value)>,
}

impl ReportLine {
    pub fn new(kind: &'static str) -> ReportLine {
        ReportLine { kind, fields: Vec::new() }
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> ReportLine {
        self.fields.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a field if it has a value.
    pub fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> ReportLine {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }
}

/// Escapes bytes reversibly. Only plain ASCII is not escaped.
pub fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Formats an ID in hexadecimal, like other tools.
pub fn id(id: u64) -> String {
    format!("{id:x}")
}

impl<W: Write> InspectReport<W> {
    pub fn new(out: W, json: bool) -> InspectReport<W> {
        InspectReport { out, json, damages: 0, failed: None }
    }

    pub fn line(&mut self, line: ReportLine) {
        if self.failed.is_none()
            && let Err(error) = self.write(line)
        {
            self.failed = Some(error);
        }
    }

    /// Reports a corruption.
    pub fn damage(&mut self, file: &str, offset: u64, what: &str) {
        self.damages += 1;
        self.line(ReportLine::new("damage").with("file", file).with("offset", offset).with("what", what));
    }

    /// Flushes the output, and returns the number of corruptions.
    pub fn finish(mut self) -> io::Result<u64> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.damages),
        }
    }

    fn write(&mut self, line: ReportLine) -> io::Result<()> {
        if self.json {
            let mut object = Map::new();
            object.insert("kind".to_owned(), line.kind.into());
            object.extend(line.fields);
            return writeln!(self.out, "{}", Value::Object(object));
        }
        write!(self.out, "{}", line.kind)?;
        let (lists, words): (Vec<_>, Vec<_>) = line.fields.iter().partition(|(_, value)| is_list(value));
        for (name, value) in words {
            match value {
                Value::String(text) if !text.contains(' ') => {
                    write!(self.out, " {name}={}", shortened(text))?
                }
                other => write!(self.out, " {name}={}", cut(other))?,
            }
        }
        for part in lists.iter().filter_map(|(_, value)| value.as_array()).flatten() {
            write!(self.out, "\n    {}", cut(part))?;
        }
        writeln!(self.out)
    }
}

/// Reports whether a value is printed below its line, with one element per line.
fn is_list(value: &Value) -> bool {
    value.as_array().is_some_and(|parts| !parts.is_empty() && parts.iter().all(Value::is_object))
}

/// Truncates the long texts of a value.
fn cut(value: &Value) -> Value {
    match value {
        Value::String(text) => shortened(text).into(),
        Value::Array(parts) => parts.iter().map(cut).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), cut(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    // Escaped text is ASCII; other texts are short.
    let head: String = text.chars().take(TEXT_MAX / 2).collect();
    format!("{head}… ({} bytes)", text.len())
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("inspect the log")]
    Log(#[from] ::wal::Error),
    #[error("inspect the store")]
    Store(#[from] mvcc::Error),
    #[error("create a directory for a copy of the catalogue")]
    Scratch(#[source] io::Error),
    #[error("no data directory {}", .0.display())]
    Missing(PathBuf),
    #[error("write")]
    Output(#[from] io::Error),
}
