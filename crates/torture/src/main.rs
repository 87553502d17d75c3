//! The command line of the experiments.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use torture::bench::{self, Environment, say};
use torture::failure::{ExperimentError, Result};
use torture::report::ExperimentReport;
use torture::{attack, fail, flip, kill, members, power_loss};

/// Whole processes against power cuts, kill -9, flipped bytes and failing disks.
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
    /// Where directories are made [default: /dev/shm if it is large, else the temporary directory].
    #[arg(long, global = true)]
    scratch: Option<PathBuf>,
    /// First of the ports to use.
    #[arg(long, global = true, default_value_t = 26500)]
    port: u16,
    /// Decides everything that is left to chance.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Experiment {
    /// Records a loaded member and starts the program on disks that a power cut could have left.
    PowerLoss {
        /// Disks to try.
        #[arg(long, default_value_t = 250)]
        images: u64,
        /// Keys of 13 B with values of 256 B that the member has before.
        #[arg(long, default_value_t = 0)]
        keys: u64,
        /// Plays a disk that only pretends to sync, and succeeds if that is found out.
        #[arg(long)]
        lying_disk: bool,
    },
    /// Kills members with SIGKILL, start-up included.
    Kill {
        /// Kills.
        #[arg(long, default_value_t = 100)]
        cycles: u64,
        /// Members of the cluster.
        #[arg(long, default_value_t = 1)]
        members: u16,
        /// Keys of 13 B with values of 256 B that the cluster has before.
        #[arg(long, default_value_t = 0)]
        keys: u64,
    },
    /// Changes the members of a cluster under load, while members are killed, paused and cut off.
    Members {
        /// Changes.
        #[arg(long, default_value_t = 100)]
        changes: u64,
    },
    /// Makes each operation on a file fail once, with EIO and with ENOSPC.
    Fail {
        /// Of all operations, one in so many is made to fail.
        #[arg(long, default_value_t = 1)]
        every: u64,
    },
    /// Flips single bytes of a data directory.
    Flip {
        /// Of the log's bytes, one in so many is flipped.
        #[arg(long, default_value_t = 1)]
        log_every: u64,
        /// Of the store's bytes, one in so many is flipped.
        #[arg(long, default_value_t = 1)]
        store_every: u64,
        /// Of the bytes of a checkpoint on its way, one in so many is flipped.
        #[arg(long, default_value_t = 1)]
        stream_every: u64,
        /// Starts of the program on a damaged directory.
        #[arg(long, default_value_t = 100)]
        starts: u64,
    },
    /// Fills small disks; needs the right to mount them.
    Full,
    /// Attacks a running server while healthy clients measure latency; exits with 1 if a verdict is bad.
    Attack(AttackFlags),
}

#[derive(Args)]
struct AttackFlags {
    /// Duration of each attack.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// How often each attack is made on the same members: what is left must not grow with it.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Members of each cluster; some attacks take more.
    #[arg(long, default_value_t = 1)]
    members: u16,
    /// Only the attack of this name; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Only the attacks whose number leaves N when divided by OF.
    #[arg(long, num_args = 2, value_names = ["N", "OF"], default_values_t = [0, 1])]
    share: Vec<usize>,
    /// How often an attack with a bad verdict is made before it counts.
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// A 99th percentile below so many milliseconds is good, also if it was lower before the attack.
    #[arg(long, default_value_t = 20)]
    p99_floor: u64,
    /// Real etcd, attacked in turn for comparison.
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// Writes all figures to this file.
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
    say(&format!("the experiment could not be made: {failure}"));
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
    /// The experiment itself is tested: it must find faults.
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
