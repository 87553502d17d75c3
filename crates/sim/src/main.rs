//! Plays stories: `sim --seeds 100 --seed 7` plays a hundred of them, the first with seed 7.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;
use sim::{Breach, Flaw, Plan, Report, run};

/// Plays whole clusters from seeds and checks that no promise is broken.
#[derive(Parser)]
struct Args {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to play.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Members of the cluster; 0 lets the seed choose among 1, 3 and 5.
    #[arg(long, default_value_t = 0)]
    members: u64,
    /// Clients that ask at the same time.
    #[arg(long, default_value_t = 10)]
    clients: u64,
    /// Simulated seconds with faults; 20 calm ones follow.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut out = std::io::stdout();
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let members = if args.members == 0 { [3, 5, 3, 1][(seed % 4) as usize] } else { args.members };
        let plan = Plan { seed, members, clients: args.clients, seconds: args.seconds, flaw: Flaw::None };
        let (line, code) = match play(plan) {
            Ok(report) => (format!("seed {seed}: {members} members, {report:?}"), None),
            Err(Breach(what)) => {
                (format!("{what}\n\nplay it again:\n  {}", again(plan)), Some(ExitCode::FAILURE))
            }
        };
        // Nobody reads any more: no reason to go on.
        if writeln!(out, "{line}").is_err() {
            return ExitCode::FAILURE;
        }
        if let Some(code) = code {
            return code;
        }
    }
    ExitCode::SUCCESS
}

/// A panic is a breach as well: most assertions of the real code are laws.
fn play(plan: Plan) -> Result<Report, Breach> {
    catch_unwind(AssertUnwindSafe(|| run(plan)))
        .unwrap_or_else(|_| Err(Breach("a member panicked, see above".into())))
}

fn again(plan: Plan) -> String {
    let Plan { seed, members, clients, seconds, flaw: _ } = plan;
    format!(
        "cargo run --release -p sim -- --seed {seed} --members {members} --clients {clients} --seconds {seconds}"
    )
}
