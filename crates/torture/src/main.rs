//! The command line of the experiments.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use torture::bench::{self, Environment, say};
use torture::failure::{ExperimentError, Result};
use torture::report::ExperimentReport;
use torture::{attack, fail, flip, kill, members, power_loss};

/// Fault injection on whole processes: power cuts, kill -9, flipped bytes and failing disks.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
    #[command(flatten)]
    means: Means,
}

#[derive(Args)]
struct Means {
    /// The program under test [default: kv-server next to this program].
    #[arg(long, global = true, alias = "program")]
    server: Option<PathBuf>,
    /// Directory for data [default: /dev/shm if it is large, else the temporary directory].
    #[arg(long, global = true)]
    scratch: Option<PathBuf>,
    /// First port to use.
    #[arg(long, global = true, default_value_t = 26500)]
    port: u16,
    /// Seed of all random choices.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Experiment {
    /// Records a member under load and starts the program on disk images that a power cut could leave.
    PowerLoss {
        /// Number of disk images.
        #[arg(long, default_value_t = 250)]
        images: u64,
        /// Number of preloaded keys (13 B, with values of 256 B).
        #[arg(long, default_value_t = 0)]
        keys: u64,
        /// Simulates a disk that ignores syncs; succeeds if the experiment detects it.
        #[arg(long)]
        lying_disk: bool,
    },
    /// Kills members with SIGKILL, also during start-up.
    Kill {
        /// Number of kills.
        #[arg(long, default_value_t = 100)]
        cycles: u64,
        /// Number of members.
        #[arg(long, default_value_t = 1)]
        members: u16,
        /// Number of preloaded keys (13 B, with values of 256 B).
        #[arg(long, default_value_t = 0)]
        keys: u64,
    },
    /// Changes the membership under load, while members are killed, paused and partitioned.
    Members {
        /// Number of membership changes.
        #[arg(long, default_value_t = 100)]
        changes: u64,
    },
    /// Fails each file operation once, with EIO and with ENOSPC.
    Fail {
        /// Fail every Nth operation.
        #[arg(long, default_value_t = 1)]
        every: u64,
    },
    /// Flips single bytes in a data directory.
    Flip {
        /// Flip every Nth byte of the log.
        #[arg(long, default_value_t = 1)]
        log_every: u64,
        /// Flip every Nth byte of the store.
        #[arg(long, default_value_t = 1)]
        store_every: u64,
        /// Flip every Nth byte of a checkpoint in transfer.
        #[arg(long, default_value_t = 1)]
        stream_every: u64,
        /// Number of starts on a corrupt directory.
        #[arg(long, default_value_t = 100)]
        starts: u64,
    },
    /// Fills small disks; requires permission to mount them.
    Full,
    /// Attacks a server while healthy clients measure latency; exits with 1 if a verdict is bad.
    Attack(AttackFlags),
}

#[derive(Args)]
struct AttackFlags {
    /// Duration of each attack in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Repetitions of each attack on the same members; remaining state must not grow with them.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Number of members per cluster; some attacks use more.
    #[arg(long, default_value_t = 1)]
    members: u16,
    /// Run only the attack with this name; repeatable.
    #[arg(long)]
    only: Vec<String>,
    /// Run only attacks with number % OF == N.
    #[arg(long, num_args = 2, value_names = ["N", "OF"], default_values_t = [0, 1])]
    share: Vec<usize>,
    /// Attempts before a bad verdict counts.
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// p99 in milliseconds that always passes, even if it was lower before the attack.
    #[arg(long, default_value_t = 20)]
    p99_floor: u64,
    /// Path of etcd, attacked as well for comparison.
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// Write all measurements to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let began = Instant::now();
    if let Experiment::Attack(flags) = &cli.experiment {
        return match attack(&cli, flags) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(failure) => not_made(&failure),
        };
    }
    match run(&cli) {
        Ok((report, wanted)) => {
            report.lines().iter().for_each(|line| say(line));
            let found = report.bad() > 0;
            say(&format!(
                "note: {}, {} s",
                report.lines().last().map_or("", |line| line),
                began.elapsed().as_secs()
            ));
            if found == (wanted == Expectation::Faults) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => not_made(&failure),
    }
}

fn not_made(failure: &ExperimentError) -> ExitCode {
    say(&format!("the experiment did not run: {failure}"));
    ExitCode::from(2)
}

fn attack(cli: &Cli, flags: &AttackFlags) -> Result<bool> {
    let order = attack::AttackOptions {
        duration: Duration::from_secs(flags.seconds),
        repeats: flags.repeat,
        members: flags.members,
        only: flags.only.clone(),
        tries: flags.tries,
        p99_floor: Duration::from_millis(flags.p99_floor),
        share: (flags.share[0], flags.share[1]),
        etcd: flags.etcd.clone(),
        json: flags.json.clone(),
    };
    attack::run(&bench(cli)?, &order)
}

fn bench(cli: &Cli) -> Result<Environment> {
    Ok(Environment {
        server: bench::server(cli.means.server.clone())?,
        scratch: bench::scratch(cli.means.scratch.clone()),
        port: cli.means.port,
    })
}

/// Condition for the success of the experiment.
#[derive(PartialEq, Eq)]
enum Expectation {
    Nothing,
    /// The experiment itself is under test: it must find faults.
    Faults,
}

fn run(cli: &Cli) -> Result<(ExperimentReport, Expectation)> {
    let bench = bench(cli)?;
    match &cli.experiment {
        Experiment::PowerLoss { images, keys, lying_disk } => {
            let (syncs, wanted) = match lying_disk {
                true => (power_loss::Syncs::Ignored, Expectation::Faults),
                false => (power_loss::Syncs::Kept, Expectation::Nothing),
            };
            let order =
                power_loss::PowerLossOptions { images: *images, keys: *keys, seed: cli.means.seed, syncs };
            Ok((power_loss::run(&bench, &order)?, wanted))
        }
        Experiment::Kill { cycles, members, keys } => {
            let order =
                kill::KillOptions { cycles: *cycles, members: *members, keys: *keys, seed: cli.means.seed };
            Ok((kill::run(&bench, &order)?, Expectation::Nothing))
        }
        Experiment::Members { changes } => {
            let order = members::MembersOptions { changes: *changes, seed: cli.means.seed };
            Ok((members::run(&bench, &order)?, Expectation::Nothing))
        }
        Experiment::Fail { every } => {
            let order = fail::FailOptions { every: (*every).max(1), seed: cli.means.seed };
            Ok((fail::run(&bench, &order)?, Expectation::Nothing))
        }
        Experiment::Flip { log_every, store_every, stream_every, starts } => {
            let order = flip::FlipOptions {
                log_every: *log_every,
                store_every: *store_every,
                stream_every: *stream_every,
                starts: *starts,
                seed: cli.means.seed,
            };
            Ok((flip::run(&bench, &order)?, Expectation::Nothing))
        }
        Experiment::Attack(_) => Err(ExperimentError::new("attacks have a separate report")),
        Experiment::Full => Ok((fail::fill(&bench, cli.means.seed)?, Expectation::Nothing)),
    }
}
