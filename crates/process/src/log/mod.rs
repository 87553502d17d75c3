//! The process's own log, in the shape that etcd's readers expect.
//!
//! ```text
//!   event ──▶ line (formatted by the caller) ──▶ outlet: queue (bounded) ──▶ thread ──▶ stderr | stdout | file | journal
//!                                           └──▶ one outlet for each of --log-outputs
//! ```
//!
//! * No caller waits for an output. Lines that find the queue of an output full are lost and counted.
//! * The level is that of `--log-level`, until SIGUSR1 sets it to debug; SIGUSR2 sets it back.
//! * Files are opened again by their names on SIGHUP.

mod line; // how an event is written
mod rotation; // backups of a file

mod outlet; // lines that wait for an output
mod sinks; // outputs

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use line::LineFormat;
use outlet::{Outlet, QueuedLine, Sink};
use sinks::{LogFile, Standard, SystemdJournal, Whole};

pub use base::causes;
pub use line::{FATAL, LogFormat};
pub use outlet::lost_lines;
pub use rotation::Rotation;

/// Libraries with debug lines about their internals, which are filtered out.
const CHATTY: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "sled"];
/// How long the end of the process waits for lines that were not written yet: an output that is stuck holds
/// it up no longer.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub level: Level,
    pub format: LogFormat,
    pub outputs: Vec<LogOutput>,
    /// Rotation of the log file, if one is among the outputs.
    pub rotation: Option<Rotation>,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    Stderr,
    Stdout,
    Journal,
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("open sink {path:?}: open {path}")]
    File { path: String, source: io::Error },
    #[error("can't find journal")]
    Journal(#[source] io::Error),
    #[error("start the thread of the log")]
    Thread(#[source] io::Error),
}

/// Logging state that lives as long as the process.
struct ActiveLog {
    outlets: Vec<Outlet>,
    set_level: Box<dyn Fn(Level) + Send + Sync>,
    /// That of the flags.
    level: Level,
    has_file: bool,
}

static RUNNING: OnceLock<ActiveLog> = OnceLock::new();

/// Opens the outputs and starts logging. A second call, as in tests, has no effect.
pub fn start(settings: &LogSettings) -> Result<(), LogError> {
    let LogSettings { level, format, outputs, rotation } = settings;
    let format = *format;
    let mut outlets = Vec::new();
    for output in outputs {
        let sink = open(output, rotation.clone())?;
        let outlet = Outlet::start(sink, move |lost| line::of_lost(format, lost));
        outlets.push(outlet.map_err(LogError::Thread)?);
    }
    let (filter, handle) = reload::Layer::new(targets(*level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(ToOutlets(outlets.clone()))
        .log_internal_errors(false)
        .event_format(LineFormat(format));
    if tracing_subscriber::registry().with(lines).with(filter).try_init().is_ok() {
        let set_level = Box::new(move |level| drop(handle.reload(targets(level))));
        let has_file = outputs.iter().any(|output| matches!(output, LogOutput::File(_)));
        let _only_here = RUNNING.set(ActiveLog { outlets, set_level, level: *level, has_file });
        if rotation.as_ref().is_some_and(|rotation| rotation.wants_local_times) {
            tracing::warn!("rotated log files have UTC timestamps despite localtime");
        }
    }
    Ok(())
}

fn targets(level: Level) -> Targets {
    let quieter = LevelFilter::from_level(level.min(Level::WARN));
    Targets::new().with_default(level).with_targets(CHATTY.map(|library| (library, quieter)))
}

fn open(output: &LogOutput, rotation: Option<Rotation>) -> Result<Box<dyn Sink>, LogError> {
    Ok(match output {
        LogOutput::Stderr => Box::new(Standard(Whole::new(io::stderr()))),
        LogOutput::Stdout => Box::new(Standard(Whole::new(io::stdout()))),
        LogOutput::Journal => Box::new(SystemdJournal::open().map_err(LogError::Journal)?),
        LogOutput::File(path) => {
            let failed = |source| LogError::File { path: path.display().to_string(), source };
            Box::new(LogFile::open(path, rotation).map_err(failed)?)
        }
    })
}

/// Waits until the lines so far were written, a second at most. Blocks.
pub fn flush() {
    for outlet in RUNNING.get().iter().flat_map(|running| &running.outlets) {
        outlet.flush(FLUSH_TIMEOUT);
    }
}

/// Changes the level and reopens files on signals. Returns only if signals cannot be received.
pub async fn follow_signals() -> io::Result<()> {
    let Some(running) = RUNNING.get() else { return Ok(()) };
    let mut louder = signal(SignalKind::user_defined1())?;
    let mut as_before = signal(SignalKind::user_defined2())?;
    // Without a log file, SIGHUP terminates the process, as when a terminal is closed.
    let mut moved = if running.has_file { Some(signal(SignalKind::hangup())?) } else { None };
    loop {
        let level = tokio::select! {
            Some(()) = louder.recv() => Level::DEBUG,
            Some(()) = as_before.recv() => running.level,
            Some(()) = next(&mut moved) => {
                running.outlets.iter().for_each(Outlet::reopen);
                tracing::info!("reopened the log files");
                continue;
            }
            else => return Ok(()),
        };
        change_level(running, level);
    }
}

/// The line about it is written at the louder of both levels.
fn change_level(running: &ActiveLog, level: Level) {
    (running.set_level)(Level::DEBUG);
    tracing::info!(to = line::level_name(level), "changed the log level");
    (running.set_level)(level);
}

async fn next(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Hands each line to every outlet.
struct ToOutlets(Vec<Outlet>);

struct LineWriter<'a> {
    outlets: &'a [Outlet],
    level: Level,
}

impl<'a> MakeWriter<'a> for ToOutlets {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { outlets: &self.0, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { outlets: &self.0, level: *metadata.level() }
    }
}

impl io::Write for LineWriter<'_> {
    /// One call has one line: so the formatter writes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = QueuedLine { level: self.level, text: String::from_utf8_lossy(bytes).into() };
        for outlet in self.outlets {
            outlet.push(line.clone());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LOGGED_INTERVAL: Duration = Duration::from_secs(1);

/// Lines of the log that any client or peer can cause: one each second.
#[derive(Debug, Default)]
pub struct LogPace {
    logged: Option<Instant>,
    unlogged: u64,
}

impl LogPace {
    /// Whether to log a line now, and how many before it were not.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now < logged + LOGGED_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_once_each_second_with_the_number_of_those_left_out() {
        let (mut pace, now) = (LogPace::default(), Instant::now());
        assert_eq!(pace.next(now), Some(0));
        assert!((0..1000).all(|_| pace.next(now).is_none()));
        assert_eq!(pace.next(now + LOGGED_INTERVAL), Some(1000));
    }
}
