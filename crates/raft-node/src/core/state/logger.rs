//! Converts the slog output of raft-rs to `tracing` events of target `raft`.
//!
//! raft-rs logs every step at level info, which becomes debug here. Its separate target has a configurable
//! level.
//!
//! A line without a subscriber costs a level check: values are formatted only for a subscriber.

use std::fmt::{Arguments, Write};

use slog::{Drain, KV, Level, Logger, OwnedKVList, Record};

/// Returns the logger for raft-rs.
pub(crate) fn logger() -> Logger {
    Logger::root(Bridge, slog::o!())
}

struct Bridge;

impl Drain for Bridge {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, _context: &OwnedKVList) -> Result<(), slog::Never> {
        // The macro's level must be a constant, hence one arm each.
        match record.level() {
            Level::Critical | Level::Error if tracing::enabled!(target: "raft", tracing::Level::ERROR) => {
                tracing::error!(target: "raft", "{}", line(record));
            }
            Level::Warning if tracing::enabled!(target: "raft", tracing::Level::WARN) => {
                tracing::warn!(target: "raft", "{}", line(record));
            }
            // The member itself logs leader changes. The intermediate steps are for debugging only.
            Level::Info | Level::Debug if tracing::enabled!(target: "raft", tracing::Level::DEBUG) => {
                tracing::debug!(target: "raft", "{}", line(record));
            }
            Level::Trace if tracing::enabled!(target: "raft", tracing::Level::TRACE) => {
                tracing::trace!(target: "raft", "{}", line(record));
            }
            _ => {}
        }
        Ok(())
    }
}

fn line(record: &Record<'_>) -> String {
    let mut line = LogLine(record.msg().to_string());
    // Formatting into a string cannot fail; a value with a formatting error is omitted.
    let _ = record.kv().serialize(record, &mut line);
    line.0
}

struct LogLine(String);

impl slog::Serializer for LogLine {
    fn emit_arguments(&mut self, key: slog::Key, value: &Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(slog::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_the_message_and_its_values() {
        let record = slog::record_static!(Level::Info, "");
        let text = line(&Record::new(&record, &format_args!("became leader"), slog::b!("term" => 7)));
        assert_eq!(text, "became leader term=7");
    }
}
