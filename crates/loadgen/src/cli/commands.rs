//! What each command does.

use super::flags::limits::{Kept, Limit};
use super::flags::sending::Sending;
use super::flags::{Cli, Command, Global, PutFlags};
use super::outputs::{self, check_json, write_json};
use super::refusal::{Refusal, of_flags};
use super::terminal::{note, print};
use super::{access, coordination, measure, plans, progress, steps, verify, ycsb};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::compare;
use crate::output::summary::Summary;
use crate::output::text::{self, chain};
use crate::run::results::Measurement;
use crate::run::{Plan, Target};
use crate::server::{self, Probe, ServerFigures};
use bench_report::model::Notice;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What `--json` holds.
#[derive(Serialize)]
struct Document<'a> {
    workload: &'static str,
    endpoints: Vec<String>,
    conns: usize,
    clients: usize,
    #[serde(flatten)]
    shown: &'a Shown<'a>,
}

/// The results of a run.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    server: Option<&'a ServerFigures>,
    /// Why the figures may mislead.
    notices: &'a [Notice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    slo: &'a [Kept],
}

/// What a single run has besides its plan.
#[derive(Clone, Copy, Default)]
struct Wants<'a> {
    warm_up: Duration,
    limits: &'a [Limit],
}

/// Executes the command line. An error means that it was refused or that a run could not begin.
pub async fn execute(mut cli: Cli) -> Result<ExitCode, Refusal> {
    of_flags(plans::refuse_unsupported(&cli.global.refused))?;
    of_flags(access::check(&cli.global.security))?;
    if cli.command.sends_to_endpoints() {
        of_flags(plans::check_callers(&cli.global))?;
        cli.global.endpoints = access::admit(&cli.global.security, cli.global.endpoints).await?;
    }
    let global = &cli.global;
    match &cli.command {
        Command::Put(flags) => put(global, flags).await,
        Command::TxnPut(flags) => {
            let endpoints = global.endpoints.clone();
            let plan = of_flags(
                plans::txn_put(flags)
                    .and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending)),
            )?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Range(flags) => {
            let endpoints = global.endpoints.clone();
            let plan = of_flags(
                plans::range(flags)
                    .and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending)),
            )?;
            say_consistency(global, &flags.consistency)?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::TxnMixed(flags) => {
            let endpoints = global.endpoints.clone();
            let plan = of_flags(
                coordination::txn_mixed(flags)
                    .and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending)),
            )?;
            say_consistency(global, &flags.consistency)?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Stm(flags) => {
            let endpoints = global.endpoints.clone();
            let plan = of_flags(
                coordination::stm(flags)
                    .and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending)),
            )?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Ycsb(flags) => {
            let plan = ycsb::loaded(global, flags).await?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::LeaseKeepalive(flags) => {
            let plan = coordination::lease_keepalive(global, &global.endpoints, flags).await?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Watch(flags) => once(global, of_flags(coordination::watch(global, flags))?).await,
        Command::WatchLatency(flags) => {
            once(global, of_flags(coordination::watch_latency(global, flags))?).await
        }
        Command::WatchGet(flags) => once(global, coordination::watch_get(global, flags).await?).await,
        Command::Verify(flags) => verify::verify(global, flags).await,
        Command::Compare(flags) => measure::compare(global, flags).await,
        Command::Suite(flags) => measure::suite(global, flags).await,
        Command::Report(flags) => Ok(outputs::report(flags).map(|()| ExitCode::SUCCESS)?),
        Command::Completion { shell } => Ok(print(&completion(*shell)).map(|()| ExitCode::SUCCESS)?),
    }
}

fn say_consistency(global: &Global, consistency: &str) -> Result<(), String> {
    let kind = if consistency == "l" { "linearizable" } else { "serializable" };
    measure::say(global, &format!("bench with {kind} range\n"))
}

/// A script that completes this program's commands and flags.
fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::described(), "loadgen", &mut script);
    String::from_utf8(script).expect("a script is text")
}

async fn put(global: &Global, flags: &PutFlags) -> Result<ExitCode, Refusal> {
    let endpoints = global.endpoints.clone();
    let planned = plans::put(flags);
    let plan = planned.and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending));
    let plan = of_flags(plan)?;
    let first = global.endpoints.first().ok_or("no endpoint given".to_owned())?.clone();
    let compaction = compact_regularly(first.clone(), flags.compact_interval, flags.compact_index_delta);
    let code = load(global, &flags.sending, plan, compaction).await?;
    if flags.check_hashkv && !global.is_json_on_stdout() {
        print(&hash_summary(&first).await.map_err(|error| error.to_string())?)?;
    }
    Ok(code)
}

/// Resolves only when a compaction fails, with the reason.
async fn compact_regularly(endpoint: Endpoint, interval: Duration, delta: i64) -> String {
    if interval.is_zero() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(interval).await;
        let compacted = async { admin::Client::connect(&endpoint).await?.compact(delta).await };
        if let Err(error) = compacted.await {
            return error.to_string();
        }
    }
}

/// Runs a plan and reports it.
async fn load(
    global: &Global,
    sending: &Sending,
    plan: Plan,
    background: impl Future<Output = String>,
) -> Result<ExitCode, Refusal> {
    let (plan, cluster) = aimed(global, plan).await?;
    if sending.steps.are_wanted() {
        return steps::run(global, &sending.steps, sending.rate, plan).await;
    }
    let wants = Wants { warm_up: sending.steps.warm_up.unwrap_or_default(), limits: &sending.steps.slo };
    Ok(single(global, plan, &cluster, wants, background).await?)
}

/// Runs a plan of a command without several rates.
async fn once(global: &Global, plan: Plan) -> Result<ExitCode, Refusal> {
    let (plan, cluster) = aimed(global, plan).await?;
    Ok(single(global, plan, &cluster, Wants::default(), std::future::pending()).await?)
}

/// Checks what a run needs, and selects its endpoints.
async fn aimed(global: &Global, mut plan: Plan) -> Result<(Plan, admin::Cluster), String> {
    check_json(global.json.as_deref())?;
    let cluster = admin::cluster(&plan.endpoints).await.map_err(|error| error.to_string())?;
    if global.target_leader {
        let leader = cluster.leader().map_err(|error| error.to_string())?;
        if plan.can_follow_leader() {
            plan.endpoints = cluster.endpoints();
            plan.target = Target::Leader;
        } else {
            plan.endpoints = vec![leader.clone()];
        }
    }
    Ok((plan, cluster))
}

/// Runs a plan at one rate and reports it.
async fn single(
    global: &Global,
    plan: Plan,
    cluster: &admin::Cluster,
    wants: Wants<'_>,
    background: impl Future<Output = String>,
) -> Result<ExitCode, String> {
    let probes = probes(global, cluster);
    let (workload, endpoints) = (plan.name(), plan.endpoints.clone());
    if !wants.warm_up.is_zero() {
        warm_up(&plan, wants.warm_up).await?;
    }
    let prepared = tokio::task::spawn_blocking(|| plan.prepare()).await.expect("preparing does not panic");
    let prepared = prepared.map_err(|error| chain(&error))?;
    let earlier = server::read(&probes).await;
    let measurement = progress::run(prepared.begin(), background).await.map_err(|error| chain(&error))?;
    let later = server::read(&probes).await;
    let figures = match (earlier, later) {
        (Ok(earlier), Ok(later)) => {
            let spent = server::spent(&probes, &earlier, &later);
            let members = cluster.members_len.filter(|_| global.server_pids.is_empty());
            Some(ServerFigures { members, ..spent })
        }
        (Err(error), _) | (_, Err(error)) => {
            note(&format!("no figures of the servers: {}", chain(&error)));
            None
        }
    };
    let summary = Summary::of(&measurement);
    let notices: Vec<_> = compare::of_load(&measurement).into_iter().map(|(_, notice)| notice).collect();
    let kept: Vec<_> = wants.limits.iter().map(|limit| limit.of(&measurement)).collect();
    let shown = Shown { summary: &summary, server: figures.as_ref(), notices: &notices, slo: &kept };
    show(global, workload, &endpoints, &shown)?;
    Ok(verdict(&measurement, global.max_errors, &kept))
}

/// Sends the load for a while without counting it. Ctrl-C ends it, and the measurement begins.
async fn warm_up(plan: &Plan, duration: Duration) -> Result<(), String> {
    let plan = Plan { total: Plan::OPEN_END, seconds_max: Some(duration), ..plan.clone() };
    let prepared = tokio::task::spawn_blocking(|| plan.prepare()).await.expect("preparing does not panic");
    let prepared = prepared.map_err(|error| chain(&error))?;
    let warmed = progress::run(prepared.begin(), std::future::pending()).await;
    warmed.map(drop).map_err(|error| chain(&error))
}

/// The members that are not named count as well where they show their counters.
fn probes(global: &Global, cluster: &admin::Cluster) -> Vec<Probe> {
    if global.server_pids.is_empty() {
        return cluster.endpoints().into_iter().map(Probe::Metrics).collect();
    }
    let process = |&pid: &u32| Probe::Process { name: format!("process {pid}"), pid };
    global.server_pids.iter().map(process).collect()
}

fn show(
    global: &Global,
    workload: &'static str,
    endpoints: &[Endpoint],
    shown: &Shown<'_>,
) -> Result<(), String> {
    if let Some(path) = &global.json {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        let Global { conns, clients, .. } = *global;
        let document = Document { workload, endpoints, conns, clients, shown };
        let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())? + "\n";
        write_json(path, &text)?;
        if global.is_json_on_stdout() {
            return Ok(());
        }
    }
    let options = text::Options { precise: global.precise, timeline: global.sample };
    let limits: String = shown.slo.iter().map(Kept::text).collect();
    let limits = if limits.is_empty() { limits } else { format!("\n{limits}") };
    print(&(text::text(shown.summary, shown.server, options) + &text::notices(shown.notices) + &limits))
}

/// Success only if the run was complete, with no more failures than allowed, and met its limits.
fn verdict(measurement: &Measurement, errors_max: u64, kept: &[Kept]) -> ExitCode {
    match measurement.partial.as_deref() {
        Some(progress::INTERRUPTED) => ExitCode::from(progress::INTERRUPTED_STATUS),
        Some(_) => ExitCode::FAILURE,
        None if measurement.failed_len() > errors_max => ExitCode::FAILURE,
        None if kept.iter().any(|kept| !kept.met) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

async fn hash_summary(endpoint: &Endpoint) -> Result<String, admin::Error> {
    let begin = Instant::now();
    let client = admin::Client::connect(endpoint).await?;
    let (hash, status) = (client.hash_kv().await?, client.status().await?);
    let took = begin.elapsed();
    let size = status.db_size as f64 / 1e6;
    Ok(format!(
        "HashKV Summary:\n\tHashKV: {hash}\n\tEndpoint: {endpoint}\n\t\
         Time taken to get hashkv: {took:?}\n\tDB size: {size:.1} MB\n"
    ))
}
