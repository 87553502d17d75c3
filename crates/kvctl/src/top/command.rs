//! The command line of `top`.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use futures_util::future::join_all;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::figures::{AddressError, ClusterFigures, DocumentSource};
use super::show::{self, HEIGHT_MIN, ScreenState, ScreenView, Theme, WIDTH_MIN, draw, draw_all};
use super::terminal;
use crate::operator::ClientTlsFlags;
use process::command_line::parse;
use process::log::causes;
use transport::tls::{Dialer, TlsError};

/// The first argument that leads here.
pub const COMMAND: &str = "top";

/// Maximum endpoints polled concurrently: as many as a member lists members.
const ENDPOINTS_MAX: usize = 64;
/// Columns where there is no terminal.
const WIDTH: u16 = 100;
/// A member makes a document in a second at most.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

const ABOUT: &str = "Shows the metrics of a cluster of kv-server in a terminal: members, rates, latencies, \
                     space, alarms, top clients and key prefixes.";

const MORE: &str = "\
Source of the metrics: each member serves them at /ui/status.json on the listeners of its \
--listen-metrics-urls, next to /metrics, and on no other listener. They are read every --interval; nothing is \
written. A member knows only its own rates, so give an endpoint of each.

Access: everyone who reaches such a listener. It requires no user and no password. An https listener \
requires a client certificate (--cert, --key) if the member has --client-cert-auth or --trusted-ca-file. On an \
http listener, --host-whitelist limits the accepted host names. Key prefixes and clients are counted only if a \
member runs with --metrics-top.

Keys: q quit, ? help, 1 to 7 views, s and r order, / filter, m one member or all, p pause.

Exit status: 0 if a member responded (--once), or at the end; 1 if none did, 2 for an invalid command line.

Example:
  kvctl top --metrics-endpoints 10.0.0.1:2381,10.0.0.2:2381,10.0.0.3:2381";

#[derive(Debug, Parser)]
#[command(name = "kvctl top", about = ABOUT, after_long_help = MORE)]
struct TopArguments {
    /// Metrics listeners of the members, as HOST:PORT or with http:// or https://. They are not client URLs:
    /// the API for clients does not have their addresses.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    metrics_endpoints: Vec<String>,
    #[command(flatten)]
    tls: ClientTlsFlags,
    /// Refresh interval, from 1s to 1h.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Initial view. With --once, the only view.
    #[arg(long, value_enum)]
    view: Option<ScreenView>,
    /// Print one sample as text and exit. Default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Width of the --once output [default: terminal width, or 100].
    #[arg(long, value_parser = clap::value_parser!(u16).range(i64::from(WIDTH_MIN)..=400))]
    columns: Option<u16>,
    /// Height of the --once output [default: all rows].
    #[arg(long, value_parser = clap::value_parser!(u16).range(i64::from(HEIGHT_MIN)..=400))]
    rows: Option<u16>,
    /// Use colors; `auto`: on a terminal, unless NO_COLOR is set.
    #[arg(long, value_enum, default_value = "auto")]
    color: WhenColored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WhenColored {
    Auto,
    Always,
    Never,
}

#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("--metrics-endpoints has {0} addresses, and {ENDPOINTS_MAX} are possible")]
    Endpoints(usize),
    #[error("--interval is less than {} s or more than {} s", INTERVAL_MIN.as_secs(), INTERVAL_MAX.as_secs())]
    Interval,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("start the client")]
    Runtime(#[source] io::Error),
    #[error("the terminal")]
    Terminal(#[source] io::Error),
    #[error("no endpoint responds")]
    Silent,
    #[error("no endpoint serves statistics: use listeners of --listen-metrics-urls, not client ports")]
    NoFigures,
}

/// The command line, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    TopArguments::command()
}

/// The whole of the command; `arguments` are those after its name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: TopArguments = match parse("kvctl top", arguments) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    match try_run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "kvctl top: {}", causes(&error));
            match error {
                TopError::Address(_) | TopError::Endpoints(_) | TopError::Interval => ExitCode::from(2),
                TopError::Tls(_)
                | TopError::Runtime(_)
                | TopError::Terminal(_)
                | TopError::Silent
                | TopError::NoFigures => ExitCode::FAILURE,
            }
        }
    }
}

fn try_run(arguments: &TopArguments) -> Result<(), TopError> {
    if arguments.metrics_endpoints.len() > ENDPOINTS_MAX {
        return Err(TopError::Endpoints(arguments.metrics_endpoints.len()));
    }
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&arguments.interval) {
        return Err(TopError::Interval);
    }
    let is_terminal = io::stdout().is_terminal();
    let is_colored = match arguments.color {
        WhenColored::Always => true,
        WhenColored::Never => false,
        // https://no-color.org: set and not empty.
        WhenColored::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()),
    };
    let theme = if is_colored { Theme::Colored } else { Theme::Plain };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(TopError::Runtime)?.block_on(async {
        let sources = sources(arguments)?;
        let mut cluster = ClusterFigures::new(sources.iter().map(DocumentSource::address));
        let mut state = ScreenState::new(arguments.view.unwrap_or_default());
        if arguments.once || !is_terminal {
            return print_once(arguments, &sources, &mut cluster, &state, theme).await;
        }
        let shown = terminal::run(&sources, &mut cluster, &mut state, arguments.interval, theme).await;
        shown.map_err(TopError::Terminal)
    })
}

/// To be called on a runtime.
fn sources(arguments: &TopArguments) -> Result<Vec<DocumentSource>, TopError> {
    let urls = arguments.tls.with_schemes(&arguments.metrics_endpoints);
    let is_secure = urls.iter().any(|url| url.starts_with("https:"));
    // A machine without authorities can still use plain connections.
    let dialer = match is_secure {
        true => Dialer::to_servers(&arguments.tls.port(), &tokio::runtime::Handle::current())?.to_http1(),
        false => Dialer::default(),
    };
    let sources: Result<Vec<DocumentSource>, AddressError> =
        urls.iter().map(|url| DocumentSource::new(url, &dialer)).collect();
    Ok(sources?)
}

/// Rates need two documents of each member.
async fn print_once(
    arguments: &TopArguments,
    sources: &[DocumentSource],
    cluster: &mut ClusterFigures,
    state: &ScreenState,
    theme: Theme,
) -> Result<(), TopError> {
    let first = tokio::time::Instant::now();
    look(sources, cluster).await;
    tokio::time::sleep_until(first + arguments.interval).await;
    look(sources, cluster).await;
    let of_terminal = || {
        let size = crossterm::terminal::size().ok().filter(|_| io::stdout().is_terminal());
        size.map_or(WIDTH, |(columns, _)| columns.max(WIDTH_MIN))
    };
    let width = arguments.columns.unwrap_or_else(of_terminal);
    let pictures = match arguments.rows {
        Some(rows) => {
            let mut screen = Buffer::empty(Rect::new(0, 0, width, rows));
            draw(&mut screen, cluster, state, theme);
            vec![screen]
        }
        None => draw_all(width, arguments.view, cluster, state, theme),
    };
    let text: String = pictures.iter().map(|picture| show::text(picture, theme)).collect();
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader of the lines closed its pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(TopError::Terminal(error)),
        _ => {}
    }
    match (cluster.endpoints.iter().any(|endpoint| endpoint.live().is_some()), cluster.without_figures()) {
        (true, _) => Ok(()),
        (false, 0) => Err(TopError::Silent),
        (false, _) => Err(TopError::NoFigures),
    }
}

/// Polls all endpoints concurrently.
async fn look(sources: &[DocumentSource], cluster: &mut ClusterFigures) {
    let answers = join_all(sources.iter().map(DocumentSource::document)).await;
    for (endpoint, answer) in cluster.endpoints.iter_mut().zip(answers) {
        endpoint.record(answer);
    }
}
