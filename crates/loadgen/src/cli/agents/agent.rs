//! `agent`: executes the commands of controllers sequentially.
//!
//! * Only commands with a single load are executed. Their output flags are ignored.
//! * A run is aborted when its controller disconnects.

use crate::agents::{AgentLine, AgentOrder, AgentPlace, AgentReply};
use crate::cli::flags::sending::{AgentFlags, Sending};
use crate::cli::flags::{Cli, Command, Global};
use crate::cli::measure::written;
use crate::cli::plans::{self, coordination};
use crate::cli::progress::{INTERRUPTED, interrupted};
use crate::cli::refusal::ExitReason;
use crate::cli::terminal::note;
use crate::cli::{access, ycsb};
use crate::client::failure::{CallFailure, Code};
use crate::output::text::chain;
use crate::run::recorder::Tally;
use crate::run::results::{KindResults, Measurement};
use crate::run::{ActiveRun, LoadPlan, PreparedRun};
use crate::server::machine;
use crate::workload::Workload;
use crate::workload::kubernetes::{EventCounts, Kubernetes};
use bytes::Bytes;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, interval, sleep, timeout};

/// Interval of polling whether a run has finished.
const LOOK: Duration = Duration::from_millis(20);
/// Heartbeat interval. Controllers give up after ten of them.
const SIGN: Duration = Duration::from_secs(1);
/// Timeout for the command of a new controller.
const ORDER_WAIT: Duration = Duration::from_secs(10);

/// Serves controllers until it is interrupted.
pub async fn serve(flags: &AgentFlags) -> Result<ExitCode, ExitReason> {
    let listener = TcpListener::bind(&flags.listen).await;
    let listener = listener.map_err(|error| format!("listen on {}: {error}", flags.listen))?;
    let address = listener.local_addr().map_err(|error| format!("listen on {}: {error}", flags.listen))?;
    note(&format!("agent at {address}"));
    tokio::select! {
        () = async { loop { one(&listener).await } } => unreachable!("the loop has no end"),
        () = interrupted() => Ok(ExitCode::SUCCESS),
    }
}

/// Serves a single controller, and rejects further ones in the meantime.
async fn one(listener: &TcpListener) {
    // The connection was closed before it was accepted, or descriptors are exhausted.
    let Ok((stream, controller)) = listener.accept().await else { return sleep(LOOK).await };
    note(&format!("controller {controller}"));
    let mut executing = std::pin::pin!(executed(stream));
    loop {
        tokio::select! {
            () = &mut executing => return,
            Ok((stream, _)) = listener.accept() => {
                let busy = AgentReply::Refused("the agent works for another controller".into());
                // The controller may have disconnected.
                let _ = AgentLine::new(stream).send(&busy).await;
            }
        }
    }
}

/// Executes a command and sends its result.
async fn executed(stream: TcpStream) {
    let mut line = AgentLine::new(stream);
    let reply = match measured(&mut line).await {
        Ok(measurement) => AgentReply::Ended(Box::new(measurement)),
        Err(reason) => AgentReply::Refused(reason),
    };
    // The controller may have disconnected.
    let _ = line.send(&reply).await;
}

async fn measured(line: &mut AgentLine) -> Result<Measurement, String> {
    let order = timeout(ORDER_WAIT, line.receive()).await.map_err(|_| "no command was sent".to_owned())?;
    let order = order.map_err(|error| error.to_string())?;
    let AgentOrder::Prepare { arguments, place } = order else {
        return Err("a controller begins before it has sent a command".into());
    };
    note(&written(arguments.iter().cloned()));
    let (prepared, cluster) = with_signs(line, prepared(arguments, place)).await??;
    line.send(&AgentReply::Prepared).await.map_err(|error| error.to_string())?;
    match next(line).await.map_err(|error| error.to_string())? {
        AgentOrder::Begin => {}
        AgentOrder::Prepare { .. } => return Err("a controller sends a command twice".into()),
        AgentOrder::Stop => return Err(INTERRUPTED.into()),
    }
    let run = prepared.begin();
    followed(line, &run).await;
    let measurement = tokio::task::spawn_blocking(|| run.finish()).await.expect("a run does not panic");
    let mut measurement = measurement.map_err(|error| chain(&error))?;
    measurement.machines = vec![machine::describe()];
    if let Some(cluster) = cluster {
        count_failures(cluster.events(), &mut measurement);
    }
    Ok(measurement)
}

/// Receives the next order, while sending heartbeats: these detect a controller whose machine is down, which
/// would otherwise block the agent.
async fn next(line: &mut AgentLine) -> std::io::Result<AgentOrder> {
    let mut ticks = interval(SIGN);
    loop {
        tokio::select! {
            order = line.receive() => return order,
            _ = ticks.tick() => line.send(&AgentReply::Working { answered: 0, failed: 0 }).await?,
        }
    }
}

/// Waits for a result, while sending heartbeats. Gives up when the controller disconnects.
async fn with_signs<T>(line: &mut AgentLine, result: impl Future<Output = T>) -> Result<T, String> {
    let mut result = std::pin::pin!(result);
    let mut ticks = interval(SIGN);
    loop {
        tokio::select! {
            result = &mut result => return Ok(result),
            _ = ticks.tick() => {
                let sign = AgentReply::Working { answered: 0, failed: 0 };
                line.send(&sign).await.map_err(|error| error.to_string())?;
            }
            order = line.receive::<AgentOrder>() => {
                let text = |error: std::io::Error| error.to_string();
                order.map_err(text)?;
                return Err(INTERRUPTED.into());
            }
        }
    }
}

/// Waits until a run has finished, or the controller stops it.
async fn followed(line: &mut AgentLine, run: &ActiveRun) {
    let (control, mut is_stopped, mut sign_due) = (run.control(), false, Instant::now());
    while !run.progress().finished {
        if Instant::now() >= sign_due {
            sign_due += SIGN;
            let progress = run.progress();
            let sign = AgentReply::Working { answered: progress.answered, failed: progress.failed };
            // `receive` detects a disconnected controller.
            let _ = line.send(&sign).await;
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            order = line.receive::<AgentOrder>(), if !is_stopped => {
                is_stopped = true;
                control.stop(if order.is_ok() { INTERRUPTED } else { "the controller ended" });
            }
        }
    }
}

/// Adds missing and duplicate events of API server watchers as a separate kind of failure.
fn count_failures(mut events: EventCounts, measurement: &mut Measurement) {
    if measurement.partial.is_some() {
        // The run did not wait for them.
        events.expected = events.received;
    }
    let mut tally = Tally::new();
    for (what, count) in events.failures() {
        tally.failed_times(&CallFailure::new(Code::DATA_LOSS, what), count);
    }
    if tally.failed_len() > 0 {
        measurement.tally.merge(&tally);
        let title = "Watch events received summary:".into();
        measurement.parts.push(KindResults { title, tally, wall: measurement.wall });
    }
}

/// Returns the prepared run of a command line, with open connections.
async fn prepared(
    arguments: Vec<String>,
    place: AgentPlace,
) -> Result<(PreparedRun, Option<Kubernetes>), String> {
    let (plan, cluster) = planned(arguments, place).await?;
    let prepared = tokio::task::spawn_blocking(|| plan.prepare()).await.expect("preparing does not panic");
    prepared.map(|prepared| (prepared, cluster)).map_err(|error| chain(&error))
}

/// Returns the plan of a command line, after creating the objects that it needs.
async fn planned(
    arguments: Vec<String>,
    place: AgentPlace,
) -> Result<(LoadPlan, Option<Kubernetes>), String> {
    let arguments = std::iter::once("loadgen".to_owned()).chain(arguments).map(Into::into).collect();
    let mut cli = Cli::read(arguments).map_err(|error| error.to_string())?;
    check(&cli.command)?;
    let global = &mut cli.global;
    if global.security.user.is_some() && global.security.password.is_none() {
        return Err("an agent asks for no password: give it with --password".into());
    }
    access::check(&global.security)?;
    plans::check_callers(global)?;
    let endpoints = std::mem::take(&mut global.endpoints);
    global.endpoints = access::admit(&global.security, endpoints).await?;
    // Output has no reader here, and this process sends the load itself.
    global.json = Some("-".into());
    global.agents.clear();
    let (plan, cluster) = plan_of(&cli.global, &cli.command, place).await?;
    let plan = if cli.global.target_leader { plans::aimed(&cli.global, plan).await?.0 } else { plan };
    Ok((plan, cluster))
}

async fn plan_of(
    global: &Global,
    command: &Command,
    place: AgentPlace,
) -> Result<(LoadPlan, Option<Kubernetes>), String> {
    let endpoints = || global.endpoints.clone();
    let plan = match command {
        Command::Put(flags) => plans::plan(global, endpoints(), plans::put(flags)?, &flags.sending),
        Command::TxnPut(flags) => plans::plan(global, endpoints(), plans::txn_put(flags)?, &flags.sending),
        Command::Range(flags) => plans::plan(global, endpoints(), plans::range(flags)?, &flags.sending),
        Command::TxnMixed(flags) => {
            plans::plan(global, endpoints(), coordination::txn_mixed(flags)?, &flags.sending)
        }
        Command::Stm(flags) => plans::plan(global, endpoints(), coordination::stm(flags)?, &flags.sending),
        Command::Ycsb(flags) => ycsb::loaded(global, flags, place).await.map_err(ExitReason::reason),
        Command::LeaseKeepalive(flags) => {
            coordination::lease_keepalive(global, &global.endpoints, flags).await
        }
        Command::Watch(flags) => coordination::watch(global, flags).and_then(with_separate_keys),
        Command::WatchLatency(flags) => coordination::watch_latency(global, flags),
        Command::WatchGet(flags) => coordination::watch_get(global, flags).await,
        Command::Kubernetes(flags) => {
            let (cluster, plan) = plans::kubernetes::plan(global, flags)?;
            let created = ycsb::load(global, plans::kubernetes::load_phase(&plan, &cluster), "objects");
            created.await.map_err(ExitReason::reason)?;
            return Ok((plan, Some(cluster)));
        }
        _ => Err(NOT_EXECUTED.into()),
    };
    Ok((plan?, None))
}

const NOT_EXECUTED: &str = "agents execute commands that send one load to --endpoints";

/// Checks that agents can execute a command with these flags.
pub fn check(command: &Command) -> Result<(), String> {
    if !command.is_one_load() {
        return Err(NOT_EXECUTED.into());
    }
    let in_steps = |sending: &Sending| sending.steps.are_wanted() || sending.steps.warm_up.is_some();
    if command.sending().is_some_and(in_steps) {
        return Err("--rates, --find-max-rate and --warm-up are not offered with --agents".into());
    }
    Ok(())
}

/// Number of random key bytes that identify the agent.
const OWN_BYTES: usize = 8;
/// The number of a key has at most ten bytes.
const KEY_BYTES_MIN: usize = OWN_BYTES + 10;

/// Returns the plan of `watch` with keys unique to this agent: its watchers must not receive events of
/// another agent.
fn with_separate_keys(mut plan: LoadPlan) -> Result<LoadPlan, String> {
    let own: [u8; OWN_BYTES] = rand::random();
    let Some(watching) = &mut plan.watching else { return Ok(plan) };
    let key = |key: &Bytes| {
        let kept = key.len().checked_sub(OWN_BYTES).filter(|_| key.len() >= KEY_BYTES_MIN);
        let reason = format!("--key-size: {KEY_BYTES_MIN} at least with --agents, which have separate keys");
        kept.map(|kept| Bytes::from([&key[..kept], &own].concat())).ok_or(reason)
    };
    let keys: Arc<[Bytes]> = watching.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?.into();
    watching.keys = keys.clone();
    if let Workload::PutKeys { keys: written, .. } = &mut plan.workload {
        *written = keys;
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_sends_nothing_does_not_keep_the_agent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut line = AgentLine::new(listener.accept().await.unwrap().0);
        let ended = timeout(2 * ORDER_WAIT, measured(&mut line)).await.expect("it is given up");
        assert_eq!(ended.unwrap_err(), "no command was sent");
        drop(silent);
    }

    #[test]
    fn events_that_an_agent_misses_are_failures_of_its_run() {
        let part = |title: &str| {
            let mut tally = Tally::new();
            tally.succeeded(1, Duration::from_millis(1), 1);
            KindResults { title: title.into(), tally, wall: Duration::from_secs(1) }
        };
        let run = |events| {
            let parts = vec![part("Total Get pod Ops: 1\nDetails:")];
            let mut measurement =
                Measurement { tally: parts[0].tally.clone(), parts, ..Measurement::default() };
            count_failures(events, &mut measurement);
            measurement
        };
        let sound = EventCounts { expected: 9, received: 9, repeated: 0 };
        let runs = [run(sound), run(EventCounts { received: 6, repeated: 2, ..sound }), run(sound)];
        assert_eq!(runs.each_ref().map(Measurement::errors), [0, 5, 0]);
        let whole = crate::agents::merged(runs.into()).unwrap();
        assert_eq!((whole.errors(), whole.tally.failed_len(), whole.parts.len()), (5, 5, 2));
        assert_eq!(whole.parts[0].title, "Total Get pod Ops: 3\nDetails:");
        assert_eq!((whole.parts[0].tally.succeeded_len(), whole.parts[1].tally.failed_len()), (3, 5));
    }

    #[tokio::test]
    async fn only_loads_of_one_cluster_are_executed() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        let place = AgentPlace { index: 1, of: 2 };
        let line = "put --clients=7 --total=50 --json=/nonexistent/x --agents=a:1";
        let plan = planned(words(line), place).await;
        assert_eq!(plan.map(|(plan, _)| (plan.clients, plan.total)).unwrap(), (7, 50));
        // The first agent loads the records.
        let plan = planned(words("ycsb --workload=d --records=100 --total=60"), place).await.unwrap().0;
        assert_eq!((plan.name(), plan.total), ("ycsb", 60));
        for line in [
            "verify",
            "compare --a=x=/bin/sh --b=y=/bin/sh",
            "report x.json",
            "put --clients=0",
            "put --rates=5",
            "watch --key-size=8",
        ] {
            assert!(planned(words(line), place).await.is_err(), "{line}");
        }
    }
}
