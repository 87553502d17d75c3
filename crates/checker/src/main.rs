//! The command line of the checks.

use checker::verify::report::brief;
use checker::{Lie, Proxy, Settings, VerifyReport};
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;

/// Minimum clients per member: a single one would not compete.
const CLIENTS_PER_MEMBER: usize = 2;
/// A lie at every nth opportunity: rare enough for progress, frequent enough for a minute.
const LIE_INTERVAL: u64 = 5;
/// The exit status of an interrupted program, as shells define it: 128 + SIGINT.
const INTERRUPTED_STATUS: u8 = 130;

/// Checks the guarantees of a running cluster, or breaks them on purpose. Endpoints without TLS only.
#[derive(Parser)]
struct Cli {
    /// Endpoints as HOST:PORT; verify also uses all other reachable members.
    #[arg(long, global = true, value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Uses a cluster through every member and checks all responses and events. Exits with 1 after a
    /// violation, or if a check was not possible.
    Verify(VerifyFlags),
    /// Listens in front of members and violates guarantees on purpose, until interrupted.
    Proxy(ProxyFlags),
}

#[derive(Args)]
struct VerifyFlags {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Maximum operations per second of all clients.
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Concurrent clients; at least two per member.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Keys that clients compete for.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keys: u32,
    /// Concurrent leases.
    #[arg(long, default_value_t = 6)]
    leases: usize,
    /// Seconds between comparisons of the members' hashes (0: never).
    #[arg(long, default_value_t = 10.0)]
    hash_interval: f64,
    /// Seconds between compactions up to the revision that all watchers have received (0: never).
    #[arg(long, default_value_t = 0.0)]
    compact_interval: f64,
    /// Timeout of a call in seconds; after it, the outcome is unknown.
    #[arg(long, default_value_t = 5.0)]
    request_timeout: f64,
    /// Prefix of all keys; a random part follows.
    #[arg(long, default_value = "verify/")]
    prefix: String,
    /// Injects these faults in front of the first member, to test that they are detected.
    #[arg(long = "lie", value_delimiter = ',', value_name = "LIE,…")]
    lies: Vec<Lie>,
    /// Injects a fault at every nth opportunity.
    #[arg(long, default_value_t = LIE_INTERVAL, value_name = "N")]
    lie_every: u64,
    /// Writes the result as JSON to a file, or to standard output with -.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = lies())]
struct ProxyFlags {
    /// Listen addresses, one per endpoint.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…", default_value = "127.0.0.1:12379")]
    listen: Vec<String>,
    /// Faults to inject.
    #[arg(long = "lie", value_delimiter = ',', value_name = "LIE,…", required = true)]
    lies: Vec<Lie>,
    /// Injects a fault at every nth opportunity.
    #[arg(long = "every", default_value_t = LIE_INTERVAL, value_name = "N")]
    every: u64,
}

/// Lists the faults, one per line.
fn lies() -> String {
    Lie::ALL.map(|lie| format!("  {:<18} {}\n", lie.name(), lie.about())).concat()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Verify(flags) => verify(&cli.endpoints, flags).await,
        Command::Proxy(flags) => proxy(&cli.endpoints, flags).await,
    };
    result.unwrap_or_else(|reason| {
        note(&reason);
        ExitCode::FAILURE
    })
}

async fn verify(named: &[String], flags: &VerifyFlags) -> Result<ExitCode, String> {
    let (mut endpoints, unreached) = checker::verify::cluster::members(named).await?;
    let shown = endpoints.clone();
    let mut settings = settings(flags, &endpoints)?;
    let (mut counts, mut proxies) = (None, JoinSet::new());
    if !flags.lies.is_empty() {
        let fail = |error: std::io::Error| format!("cannot start the proxy: {error}");
        let proxy = Proxy::bind("127.0.0.1:0", endpoints[0].clone(), &flags.lies, flags.lie_every).await;
        let proxy = proxy.map_err(fail)?;
        endpoints[0] = proxy.address().map_err(fail)?.to_string();
        counts = Some(proxy.counts());
        proxies.spawn(proxy.serve());
        settings.endpoints = endpoints;
    }
    let mut remark = |passed: Duration, checked: &_| {
        note(&format!("{:.0} s: {}", passed.as_secs_f64(), brief(checked)));
    };
    let mut report = checker::run(&settings, interrupted(), &mut remark).await?;
    (report.endpoints, report.unreached) = (shown, unreached);
    let injected = counts.iter().flat_map(|counts| counts.get());
    report.lies = injected.map(|(lie, times)| (lie.to_string(), times)).collect();
    write(flags.json.as_deref(), &report)?;
    Ok(match &report {
        VerifyReport { violation: Some(_), .. } | VerifyReport { failed: Some(_), .. } => ExitCode::FAILURE,
        VerifyReport { interrupted: true, .. } => ExitCode::from(INTERRUPTED_STATUS),
        report if report.is_clean() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn settings(flags: &VerifyFlags, endpoints: &[String]) -> Result<Settings, String> {
    let seconds = |name: &str, value: f64| {
        Duration::try_from_secs_f64(value).map_err(|error| format!("invalid --{name} {value}: {error}"))
    };
    if !(flags.minutes > 0.0 && flags.rate > 0.0 && flags.request_timeout > 0.0) {
        return Err("--minutes, --rate and --request-timeout must be greater than 0".into());
    }
    let interval = |name, value| seconds(name, value).map(|it| (!it.is_zero()).then_some(it));
    Ok(Settings {
        endpoints: endpoints.to_vec(),
        prefix: flags.prefix.clone(),
        duration: seconds("minutes", flags.minutes * 60.0)?,
        rate: flags.rate,
        clients: flags.clients.max(CLIENTS_PER_MEMBER * endpoints.len()),
        keys: flags.keys,
        leases: flags.leases,
        hash_interval: interval("hash-interval", flags.hash_interval)?,
        compact_interval: interval("compact-interval", flags.compact_interval)?,
        request_timeout: seconds("request-timeout", flags.request_timeout)?,
    })
}

#[expect(clippy::print_stdout, reason = "the result of the program")]
fn write(json: Option<&Path>, report: &VerifyReport) -> Result<(), String> {
    if json != Some(Path::new("-")) {
        print!("{}", report.text());
    }
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string(report).map_err(|error| error.to_string())?;
    if path == Path::new("-") {
        println!("{text}");
        return Ok(());
    }
    std::fs::write(path, text + "\n").map_err(|error| format!("cannot write {}: {error}", path.display()))
}

async fn proxy(endpoints: &[String], flags: &ProxyFlags) -> Result<ExitCode, String> {
    let ProxyFlags { listen, lies, every } = flags;
    if listen.len() != endpoints.len() {
        let (given, needed) = (listen.len(), endpoints.len());
        return Err(format!("--listen has {given} addresses for {needed} endpoints; expected one each"));
    }
    let (mut proxies, mut all_counts) = (JoinSet::new(), Vec::new());
    for (listen, endpoint) in listen.iter().zip(endpoints) {
        let fail = |error: std::io::Error| format!("cannot listen on {listen}: {error}");
        let proxy = Proxy::bind(listen, endpoint.clone(), lies, *every).await.map_err(fail)?;
        let address = proxy.address().map_err(fail)?;
        note(&format!("{address} forwards to {endpoint}"));
        all_counts.push((address, proxy.counts()));
        proxies.spawn(proxy.serve());
    }
    interrupted().await;
    proxies.shutdown().await;
    for (address, counts) in all_counts {
        let counts = counts.get().into_iter().map(|(lie, times)| format!("{lie} {times} times"));
        note(&format!("{address} injected: {}", counts.collect::<Vec<_>>().join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Completes at SIGINT.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[expect(clippy::print_stderr, reason = "progress and errors of the program")]
fn note(text: &str) {
    eprintln!("checker: {text}");
}
