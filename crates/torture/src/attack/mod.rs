//! Attacks on a running server, while healthy clients measure the impact.
//!
//! ```sh
//! cargo run --release -p torture -- attack                                    # all attacks on kv-server, 30 s each
//! cargo run --release -p torture -- attack --etcd interop/bin/etcd            # and on etcd
//! cargo run --release -p torture -- attack --only ping-flood --seconds 5
//! cargo run --release -p torture -- attack --share 0 3 --tries 2              # a third of the attacks, as the gate does
//! cargo run --release -p torture -- attack --repeat 100 --seconds 1           # what does each attack leave?
//! cargo run --release -p torture -- attack --members 3 --only large-puts      # where a quorum matters
//! ```
//!
//! Each attack has a fresh cluster. It passes if no process exits, p99 of the healthy calls during the
//! attack is at most five times the previous one, resident memory grows by at most 256 MiB, and latencies
//! are normal again within 5 s.
//!
//! * Loopback only. Everything is bounded in time, number and rate.
//! * Members are killed through their own handles, also when a trial fails or is interrupted.

mod http2; // HTTP/2, compliant and malicious
mod target; // the cluster under attack

mod figures; // measurements of healthy clients, and the verdict
mod preload; // initial contents of the store

mod attacks; // the attackers
mod catalogue; // all attacks, by name

mod trial; // an attack on a program

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::bench::{Environment, say};
use crate::failure::{Attempt, ExperimentError, Result};
use catalogue::{ATTACKS, Attack};
use figures::outcome::AttackOutcome;
use target::ServerProgram;
use trial::Trial;

/// Lower priority than the server and the healthy clients.
const ATTACKER_NICENESS: i32 = 5;

#[derive(Clone, Debug)]
pub struct AttackOptions {
    pub duration: Duration,
    /// Repetitions of each attack on the same members. The usage after the last repetition is
    /// compared with the usage after the first.
    pub repeats: u32,
    pub members: u16,
    /// Names of the attacks; empty for all.
    pub only: Vec<String>,
    /// `(n, m)` selects the n-th of m shares of the attacks.
    pub share: (usize, usize),
    /// Attempts before a bad verdict counts, because other programs on the machine disturb
    /// latencies. An attack that made a process exit is not retried.
    pub tries: u32,
    /// A 99th percentile below this is always accepted.
    pub p99_floor: Duration,
    /// A second program, attacked after the first without a verdict.
    pub etcd: Option<PathBuf>,
    pub json: Option<PathBuf>,
}

/// Runs the attacks. Reports whether the first program passes all of them.
pub fn run(bench: &Environment, order: &AttackOptions) -> Result<bool> {
    let attacks = chosen(order)?;
    raise_descriptor_limit();
    let programs: Result<Vec<ServerProgram>> =
        std::iter::once(&bench.server).chain(&order.etcd).map(|path| ServerProgram::at(path)).collect();
    let programs = programs?;
    let calm =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().or_say("start a runtime")?;
    let attackers = attackers()?;
    let outcomes = calm.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).or_say("handle SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).or_say("handle SIGTERM")?;
        tokio::select! {
            outcomes = all(bench, order, &attacks, &programs, &attackers) => outcomes,
            _ = interrupt.recv() => Err(ExperimentError::new("interrupted")),
            _ = terminate.recv() => Err(ExperimentError::new("terminated")),
        }
    });
    attackers.shutdown_background();
    let outcomes = outcomes?;
    let names: Vec<String> = programs.iter().map(|program| trial::name(program.kind).to_owned()).collect();
    say(&figures::outcome::markdown(&names, &outcomes));
    if let Some(path) = &order.json {
        let text = serde_json::to_string_pretty(&outcomes).or_say("write JSON")?;
        std::fs::write(path, text).attempt("write", path)?;
    }
    let bad = outcomes.iter().filter(|outcome| outcome.program == names[0] && !outcome.passed()).count();
    say(&format!("note: {} attacks of {:?}, {bad} with a bad verdict", attacks.len(), order.duration));
    Ok(bad == 0)
}

fn chosen(order: &AttackOptions) -> Result<Vec<&'static Attack>> {
    if let Some(unknown) = order.only.iter().find(|name| ATTACKS.iter().all(|attack| attack.name != **name)) {
        let known: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        return Err(ExperimentError::new(format!(
            "no attack is called {unknown}; there are {}",
            known.join(", ")
        )));
    }
    let (share, shares) = order.share;
    let wanted = |(number, attack): &(usize, &Attack)| {
        let named = order.only.is_empty() || order.only.iter().any(|name| name == attack.name);
        named && number % shares.max(1) == share % shares.max(1)
    };
    Ok(ATTACKS.iter().enumerate().filter(wanted).map(|(_, attack)| attack).collect())
}

/// Raises the limit for thousands of attackers and the healthy clients. If the hard limit is too
/// low, attacks run with fewer connections.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _unchanged = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn attackers() -> Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // On Linux, `nice` applies only to the calling thread.
        .on_thread_start(|| {
            let _unchanged = nice(ATTACKER_NICENESS);
        })
        .build();
    runtime.or_say("start a runtime for attackers")
}

async fn all(
    bench: &Environment,
    order: &AttackOptions,
    attacks: &[&'static Attack],
    programs: &[ServerProgram],
    attackers: &Runtime,
) -> Result<Vec<AttackOutcome>> {
    let mut outcomes = Vec::new();
    for attack in attacks {
        for program in programs {
            let trial = Trial {
                bench,
                attack,
                program,
                members: order.members,
                duration: order.duration,
                repeats: order.repeats,
                p99_floor: order.p99_floor,
                attackers: attackers.handle().clone(),
            };
            outcomes.push(tried(&trial, order.tries).await);
        }
    }
    Ok(outcomes)
}

async fn tried(trial: &Trial<'_>, tries: u32) -> AttackOutcome {
    let mut left = tries.max(1);
    loop {
        left -= 1;
        // A failed trial does not stop the remaining attacks.
        let outcome = trial.run().await.unwrap_or_else(|failure| trial.failed(&failure));
        say(&line(&outcome));
        if outcome.passed() || outcome.ended.is_some() || left == 0 {
            return outcome;
        }
    }
}

fn line(outcome: &AttackOutcome) -> String {
    let AttackOutcome { attack, program, acts, breaks, before, during, rss_mib, .. } = outcome;
    let verdict = if outcome.passed() { "ok".to_owned() } else { outcome.faults.join(", ") };
    let detail = outcome.ended.as_ref().or(outcome.failure.as_ref()).map_or("", String::as_str);
    format!(
        "{attack:20} {program:10} {verdict}; p99 {} → {} ms, RSS {rss_mib:?} MiB, failed {}, lost {}, \
         {acts} acts, {breaks} sessions broken {detail}",
        figures::outcome::millis(before.p99),
        figures::outcome::millis(during.p99),
        outcome.failed,
        outcome.lost,
    )
}
