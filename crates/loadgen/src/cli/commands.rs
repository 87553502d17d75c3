//! Execution of each command.

use super::flags::kubernetes::KubernetesFlags;
use super::flags::sending::{Reporting, Sending};
use super::flags::steps::StepFlags;
use super::flags::{Cli, Command, Global, PutFlags};
use super::outputs::check_writable;
use super::plans::aimed;
use super::plans::coordination;
use super::refusal::{ExitReason, of_flags};
use super::single::{self, Wants};
use super::terminal::{note, print};
use super::{access, agents, measure, plans, report, steps, verify, ycsb};
use crate::agents::AgentPlace;
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::run::LoadPlan;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Executes the command line. Fails if it is invalid or a run could not start.
pub async fn execute(mut cli: Cli) -> Result<ExitCode, ExitReason> {
    admit(&mut cli).await?;
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
            let plan = ycsb::loaded(global, flags, place(global)).await?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Kubernetes(flags) => kubernetes(global, flags).await,
        Command::LeaseKeepalive(flags) => {
            let plan = coordination::lease_keepalive(global, &global.endpoints, flags).await?;
            load(global, &flags.sending, plan, std::future::pending()).await
        }
        Command::Watch(flags) => {
            once(global, &flags.reporting, of_flags(coordination::watch(global, flags))?).await
        }
        Command::WatchLatency(flags) => {
            once(global, &flags.reporting, of_flags(coordination::watch_latency(global, flags))?).await
        }
        Command::WatchGet(flags) => {
            once(global, &flags.reporting, coordination::watch_get(global, flags).await?).await
        }
        Command::Verify(flags) => verify::verify(global, flags).await,
        Command::Proxy(flags) => verify::proxy::serve(global, flags).await,
        Command::Compare(flags) => measure::compare(global, flags).await,
        Command::Suite(flags) => measure::suite(global, flags).await,
        Command::Report(flags) => Ok(report::report(flags).map(|()| ExitCode::SUCCESS)?),
        Command::Agent(flags) => agents::agent::serve(flags).await,
        Command::Completion { shell } => Ok(print(&completion(*shell)).map(|()| ExitCode::SUCCESS)?),
    }
}

/// Checks that the flags are compatible, and prepares the endpoints.
async fn admit(cli: &mut Cli) -> Result<(), ExitReason> {
    of_flags(plans::refuse_unsupported(&cli.global.refused))?;
    of_flags(access::check(&cli.global.security))?;
    if cli.command.sends_to_endpoints() {
        of_flags(plans::check_callers(&cli.global))?;
        let endpoints = std::mem::take(&mut cli.global.endpoints);
        cli.global.endpoints = access::admit(&cli.global.security, endpoints).await?;
    }
    let global = &cli.global;
    if !global.agents.is_empty() {
        of_flags(agents::agent::check(&cli.command))?;
        if global.live || global.metrics_listen.is_some() {
            let reason = "--live and --metrics-listen show a run of this process, not of --agents";
            return Err(ExitReason::CommandLine(reason.into()));
        }
    }
    Ok(())
}

async fn kubernetes(global: &Global, flags: &KubernetesFlags) -> Result<ExitCode, ExitReason> {
    let (cluster, plan) = of_flags(plans::kubernetes::plan(global, flags))?;
    if flags.sending.dry_run || !global.agents.is_empty() {
        return load(global, &flags.sending, plan, std::future::pending()).await;
    }
    let created = ycsb::load(global, plans::kubernetes::load_phase(&plan, &cluster), "objects");
    created.await?;
    let code = load(global, &flags.sending, plan, std::future::pending()).await?;
    let events = cluster.events();
    measure::say(global, &format!("\nWatchers of API servers received {} events.\n", events.received))?;
    if cluster.listed() > 0 {
        note(&format!("{} watchers listed their resource again after a compaction", cluster.listed()));
    }
    let failures = events.failures();
    failures.iter().for_each(|(what, count)| note(&format!("{count} {what}")));
    Ok(if failures.is_empty() || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE })
}

fn say_consistency(global: &Global, consistency: &str) -> Result<(), String> {
    let kind = if consistency == "l" { "linearizable" } else { "serializable" };
    measure::say(global, &format!("bench with {kind} range\n"))
}

/// Generates a completion script for commands and flags.
fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::described(), "loadgen", &mut script);
    String::from_utf8(script).expect("a script is text")
}

async fn put(global: &Global, flags: &PutFlags) -> Result<ExitCode, ExitReason> {
    let endpoints = global.endpoints.clone();
    let planned = plans::put(flags);
    let plan = planned.and_then(|workload| plans::plan(global, endpoints, workload, &flags.sending));
    let plan = of_flags(plan)?;
    let first = global.endpoints.first().ok_or("no endpoint given".to_owned())?.clone();
    let compaction = compact_regularly(first.clone(), flags.compact_interval, flags.compact_index_delta);
    let code = load(global, &flags.sending, plan, compaction).await?;
    if flags.check_hashkv && !flags.sending.dry_run && !global.is_json_on_stdout() {
        print(&hash_summary(&first).await.map_err(|error| error.to_string())?)?;
    }
    Ok(code)
}

/// Completes only with the reason of a failed compaction.
async fn compact_regularly(endpoint: Endpoint, interval: Duration, delta: i64) -> String {
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

async fn load(
    global: &Global,
    sending: &Sending,
    plan: LoadPlan,
    background: impl Future<Output = String>,
) -> Result<ExitCode, ExitReason> {
    global.json.as_deref().map_or(Ok(()), check_writable)?;
    let (plan, cluster) = aimed(global, plan).await?;
    if sending.dry_run {
        let text = plans::shown::shown(&plan, Some(&sending.steps));
        return Ok(print(&text).map(|()| ExitCode::SUCCESS)?);
    }
    if sending.steps.are_wanted() {
        return steps::run(global, &sending.steps, sending.rate, plan).await;
    }
    let StepFlags { warm_up, slo, outputs, .. } = &sending.steps;
    let plan = LoadPlan { warm_up: warm_up.unwrap_or_default(), ..plan };
    let wants = Wants { limits: slo, outputs: outputs.clone(), hdr: sending.hdr.clone() };
    single::run(global, plan, &cluster, wants, background).await
}

/// Runs a plan of a command without rate steps.
async fn once(global: &Global, reporting: &Reporting, plan: LoadPlan) -> Result<ExitCode, ExitReason> {
    global.json.as_deref().map_or(Ok(()), check_writable)?;
    let (plan, cluster) = aimed(global, plan).await?;
    if reporting.dry_run {
        return Ok(print(&plans::shown::shown(&plan, None)).map(|()| ExitCode::SUCCESS)?);
    }
    let Reporting { slo, hdr, outputs, .. } = reporting;
    let wants = Wants { limits: slo, outputs: outputs.clone(), hdr: hdr.clone() };
    single::run(global, plan, &cluster, wants, std::future::pending()).await
}

/// Returns the position of this process. With agents, the first one creates the objects, and this process
/// does not.
fn place(global: &Global) -> AgentPlace {
    let of = global.agents.len() as u64 + 1;
    AgentPlace { index: u64::from(of > 1), of }
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
