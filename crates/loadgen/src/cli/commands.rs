//! Execution of each command.

use super::flags::{Cli, Command, Global, PutFlags};
use super::outputs::check_writable;
use super::progress;
use super::refusal::{ExitReason, of_flags};
use super::single::{self, Wants};
use super::terminal::{note, print};
use super::{access, loads, measure, report, steps};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::load;
use crate::output::text::chain;
use crate::run::Run;
use crate::workload::Workload;
use crate::workload::kubernetes::Kubernetes;
use bench_report::model::{Load, Operation, Pace, Target};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Executes the command line. Fails if it is invalid or a run could not start.
pub async fn execute(mut cli: Cli) -> Result<ExitCode, ExitReason> {
    of_flags(loads::refuse_unsupported(&cli.global.refused))?;
    of_flags(access::check(&cli.global.security))?;
    let load = of_flags(loads::load(&cli.global, &cli.command))?;
    if cli.command.sends_to_endpoints() {
        let endpoints = std::mem::take(&mut cli.global.endpoints);
        cli.global.endpoints = access::admit(&cli.global.security, endpoints).await?;
    }
    let global = &cli.global;
    match (&cli.command, load) {
        (command, Some(load)) => send(global, command, &load).await,
        (Command::Suite(flags), None) => measure::suite(global, flags).await,
        (Command::Compare(flags), None) => measure::compare(global, flags).await,
        (Command::Report(flags), None) => Ok(report::report(flags).map(|()| ExitCode::SUCCESS)?),
        (Command::Completion { shell }, None) => Ok(print(&completion(*shell)).map(|()| ExitCode::SUCCESS)?),
        (command, None) => unreachable!("{command:?} has a load"),
    }
}

/// Generates a completion script for commands and flags.
fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::described(), "loadgen", &mut script);
    String::from_utf8(script).expect("a script is text")
}

/// Sends the load of a command: once, or to each member separately.
async fn send(global: &Global, command: &Command, load: &Load) -> Result<ExitCode, ExitReason> {
    if load.target != Target::EachSummed {
        return send_to(global, &global.endpoints, command, load).await.map(|(code, _)| code);
    }
    let (mut worst, mut sum) = (ExitCode::SUCCESS, 0.0);
    for endpoint in &global.endpoints {
        measure::say(global, &format!("\n{endpoint}\n"))?;
        let (code, rate) = send_to(global, std::slice::from_ref(endpoint), command, load).await?;
        worst = if code == ExitCode::SUCCESS { worst } else { code };
        sum += rate;
    }
    measure::say(global, &format!("\nSum over the members, one after the other: {sum:.0} requests/s\n"))?;
    Ok(worst)
}

/// Sends a load to these endpoints; returns the requests per second.
async fn send_to(
    global: &Global,
    endpoints: &[Endpoint],
    command: &Command,
    load: &Load,
) -> Result<(ExitCode, f64), ExitReason> {
    global.json.as_deref().map_or(Ok(()), check_writable)?;
    let (sending, reporting) = (command.sending(), command.reporting());
    let dry_run = sending.is_some_and(|it| it.dry_run) || reporting.is_some_and(|it| it.dry_run);
    let (mut run, cluster) = loads::run(global, endpoints, load, dry_run).await?;
    if dry_run {
        let text = described(load, &run, sending.map(|sending| &sending.steps));
        return Ok((print(&text).map(|()| ExitCode::SUCCESS)?, 0.0));
    }
    if let Operation::Range(range) = &load.operation {
        let kind = if range.serializable { "serializable" } else { "linearizable" };
        measure::say(global, &format!("bench with {kind} range\n"))?;
    }
    let kubernetes = fill(global, load, &run).await?;
    if let Some(sending) = sending.filter(|sending| sending.steps.are_wanted()) {
        return steps::run(global, &sending.steps, sending.rate, load, run).await.map(|code| (code, 0.0));
    }
    let wants = match (sending, reporting) {
        (Some(sending), _) => {
            run.warm_up = sending.steps.warm_up.unwrap_or_default();
            let outputs = sending.steps.outputs.clone();
            Wants { limits: &sending.steps.slo, outputs, hdr: sending.hdr.clone() }
        }
        (None, Some(flags)) => {
            Wants { limits: &flags.slo, outputs: flags.outputs.clone(), hdr: flags.hdr.clone() }
        }
        (None, None) => Wants::default(),
    };
    let first = run.endpoints[0].clone();
    let put = match command {
        Command::Put(flags) => Some(flags),
        _ => None,
    };
    let compaction = compact_regularly(first.clone(), put);
    let (mut code, rate) = single::run(global, load, run, &cluster, wants, compaction).await?;
    if put.is_some_and(|put| put.check_hashkv) && !global.is_json_on_stdout() {
        print(&hash_summary(&first).await.map_err(|error| error.to_string())?)?;
    }
    if let Some(kubernetes) = kubernetes {
        code = check_events(global, &kubernetes, code)?;
    }
    Ok((code, rate))
}

/// Describes a load without sending it.
fn described(load: &Load, run: &Run, steps: Option<&super::flags::steps::StepFlags>) -> String {
    let endpoints: Vec<_> = run.endpoints.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "{}\n  command: {}\n  endpoints: {}\n",
        load::title(load, endpoints.len()),
        load.command(),
        endpoints.join(", ")
    );
    let mut add =
        |name: &str, value: String| writeln!(text, "  {name}: {value}").expect("a string accepts text");
    add("pace", single::pace(load));
    if load.streams > 0 {
        let watchers = load.streams * load.watchers_per_stream;
        add("watchers", format!("{watchers} on {} streams", load.streams));
    }
    if let Some(steps) = steps.filter(|steps| steps.are_wanted()) {
        let rates =
            if steps.find_max_rate { "searched".into() } else { format!("{:?} per second", steps.rates) };
        add("rates", format!("{rates}, {:?} each, open loop", steps.step));
    }
    text
}

/// Creates the records or objects that a load uses. Returns the cluster of API servers, which counts the
/// events of its watchers.
async fn fill(global: &Global, load: &Load, run: &Run) -> Result<Option<Kubernetes>, ExitReason> {
    let (workload, total, what) = match (&run.workload, &load.operation) {
        (Workload::Ycsb(records), Operation::Ycsb(of)) if !of.skip_load => {
            (Workload::Ycsb(records.load_phase()), of.records, "records")
        }
        (Workload::Kubernetes(cluster), _) => {
            (Workload::Kubernetes(cluster.load_phase()), cluster.objects(), "objects")
        }
        _ => return Ok(None),
    };
    let pace = Pace::Unlimited;
    let filling = Run { workload, total, seconds_max: None, pace, ..run.clone() };
    let prepared = progress::prepared(filling).await?;
    let filled = progress::run(prepared.begin(), std::future::pending()).await;
    let filled = filled.map_err(|error| chain(&error))?;
    let succeeded = filled.tally.succeeded_len();
    if filled.partial.as_deref() == Some(progress::INTERRUPTED) {
        return Err(ExitReason::Interrupted(format!("interrupted after {succeeded} of {total} {what}")));
    }
    if succeeded < total {
        let failure = filled.tallies().flat_map(|tally| tally.failures.iter()).next();
        let reason = match (&filled.partial, failure) {
            (Some(reason), _) => reason.clone(),
            (None, Some((code, failures))) => format!("{code}: {}", failures.sample),
            (None, None) => "no reply".into(),
        };
        return Err(ExitReason::Run(format!("created {succeeded} of {total} {what}: {reason}")));
    }
    let (per_second, seconds) = (filled.per_second(), filled.wall.as_secs_f64());
    measure::say(global, &format!("Created {total} {what} in {seconds:.1} s, {per_second:.0}/s.\n"))?;
    Ok(match &run.workload {
        Workload::Kubernetes(cluster) => Some(cluster.clone()),
        _ => None,
    })
}

/// Reports the events of the API servers' watchers.
fn check_events(global: &Global, cluster: &Kubernetes, code: ExitCode) -> Result<ExitCode, String> {
    let events = cluster.events();
    measure::say(global, &format!("\nWatchers of API servers received {} events.\n", events.received))?;
    if cluster.listed() > 0 {
        note(&format!("{} watchers listed their resource again after a compaction", cluster.listed()));
    }
    let failures = events.failures();
    failures.iter().for_each(|(what, count)| note(&format!("{count} {what}")));
    Ok(if failures.is_empty() || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE })
}

/// Completes only with the reason of a failed compaction.
async fn compact_regularly(endpoint: Endpoint, flags: Option<&PutFlags>) -> String {
    let interval = flags.map_or(Duration::ZERO, |flags| flags.compact_interval);
    let delta = flags.map_or(0, |flags| flags.compact_index_delta);
    if interval.is_zero() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(interval).await;
        let compacted = async { admin::AdminClient::connect(&endpoint).await?.compact(delta).await };
        if let Err(error) = compacted.await {
            return error.to_string();
        }
    }
}

async fn hash_summary(endpoint: &Endpoint) -> Result<String, admin::Error> {
    let begin = Instant::now();
    let client = admin::AdminClient::connect(endpoint).await?;
    let (hash, status) = (client.hash_kv().await?, client.status().await?);
    let took = begin.elapsed();
    let size = status.db_size as f64 / 1e6;
    Ok(format!(
        "HashKV Summary:\n\tHashKV: {hash}\n\tEndpoint: {endpoint}\n\t\
         Time taken to get hashkv: {took:?}\n\tDB size: {size:.1} MB\n"
    ))
}
