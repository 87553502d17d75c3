//! Runs simulations: `sim --seeds 100 --seed 7` executes a hundred runs, the first with seed 7.
//!
//! The program stops after a run that breaks a law, and prints the breach and how to replay it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sim::fleet::{StopCondition, Totals, play, play_many};
use sim::{Breach, KnownBug, RunPlan, Statistic, Trace};

/// Plays whole clusters from seeds and checks that no promise is broken.
#[derive(Parser)]
struct Args {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds to play at least; 1 unless hours are given.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Simulated hours to play at least.
    #[arg(long, default_value_t = 0.0)]
    hours: f64,
    /// Begin no further run after so many minutes of real time.
    #[arg(long)]
    minutes: Option<f64>,
    /// Runs played at the same time, each in a separate thread.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Members of the cluster; 0 lets the seed choose among 1 to 5 and 7, mostly 3 and 5.
    #[arg(long, default_value_t = 0)]
    members: u64,
    /// Clients that ask at the same time.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Simulated seconds with faults; 20 calm ones follow.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Tell everything that happens.
    #[arg(long)]
    trace: bool,
}

/// Sizes of clusters, by seed: mostly common ones.
const MEMBERS: [u64; 16] = [3, 5, 3, 4, 3, 1, 3, 5, 3, 2, 3, 7, 5, 4, 3, 5];

impl Args {
    fn plan(&self, number: u64) -> RunPlan {
        let seed = self.seed.wrapping_add(number);
        let members =
            if self.members == 0 { MEMBERS[(seed % MEMBERS.len() as u64) as usize] } else { self.members };
        RunPlan { seed, members, clients: self.clients, seconds: self.seconds, known_bug: KnownBug::None }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut out = std::io::stdout();
    let (text, is_well) = if args.trace { tell(&args) } else { totals(&args) };
    // A closed standard output is not a failure of the simulation.
    let _ = writeln!(out, "{text}");
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(args: &Args) -> (String, bool) {
    let plan = args.plan(0);
    let trace: Trace = Box::new(|line| {
        let _ = writeln!(std::io::stdout(), "{line}"); // As above.
    });
    match play(plan, Some(trace)) {
        Ok(report) => (format!("{report}trace {:016x}", report.trace), true),
        Err(breach) => (broken(plan, &breach), false),
    }
}

fn totals(args: &Args) -> (String, bool) {
    let until = StopCondition {
        runs: args.seeds,
        simulated: Duration::from_secs_f64(args.hours * 3600.0),
        real: args.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)),
    };
    let Totals { report, took, breaches } = play_many(args.jobs, until, &|number| args.plan(number));
    let hours = report.simulated_seconds as f64 / 3600.0;
    let ratio = report.simulated_seconds as f64 / took.as_secs_f64();
    let mut text =
        format!("{report}\nseeds {} from {} on, trace {:016x}\n", report.runs, args.seed, report.trace);
    text += &format!(
        "simulated {hours:.2} h in {:.1} s of real time: {ratio:.0} times as fast, in {} jobs\n",
        took.as_secs_f64(),
        args.jobs
    );
    if let Some(seconds) = processor_seconds() {
        let ratio = report.simulated_seconds as f64 / seconds;
        text += &format!("processor time {seconds:.1} s: {ratio:.0} times as fast on a separate core\n");
    }
    text += &format!(
        "faults {}, elections {}, events {}\n",
        report.faults(),
        report.get(Statistic::Elections),
        report.events
    );
    text += &format!("violations {}", breaches.len());
    for (plan, breach) in &breaches {
        text += &format!("\n\n{}", broken(*plan, breach));
    }
    (text, breaches.is_empty())
}

/// Returns the CPU time of this process, if the system reports it: the cost of a run even on a busy
/// machine.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in brackets: user and system time are fields 14 and 15, in hundredths of a
    // second.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let hundredths = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let spent = hundredths(14)? + hundredths(15)?;
    (spent > 0).then_some(spent as f64 / 100.0)
}

/// Describes a breach, and the command that replays it.
fn broken(plan: RunPlan, Breach(what): &Breach) -> String {
    let RunPlan { seed, members, clients, seconds, known_bug: _ } = plan;
    format!(
        "seed {seed}: {what}\nplay it again:\n  \
         cargo run --release -p sim -- --seed {seed} --members {members} --clients {clients} --seconds {seconds} --trace"
    )
}
