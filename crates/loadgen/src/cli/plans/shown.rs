//! `--dry-run`: describes the load of a run.

use super::super::flags::steps::StepFlags;
use super::row::{pace, spec, title};
use crate::run::schedule::RunPace;
use crate::run::{EndpointTarget, LoadPlan};
use bench_report::model::Values;
use std::fmt::{self, Write as _};

/// Describes the load of `plan`, at several rates if the command has such flags: a line with the fixed part,
/// and a line for each fact.
pub fn shown(plan: &LoadPlan, steps: Option<&StepFlags>) -> String {
    let mut text = String::new();
    write_plan(&mut text, plan, steps).expect("a string takes text");
    text
}

fn write_plan(text: &mut String, plan: &LoadPlan, steps: Option<&StepFlags>) -> fmt::Result {
    let spec = spec(plan);
    let searches = steps.is_some_and(|steps| steps.find_max_rate);
    let rates = steps.map_or(&[][..], |steps| &steps.rates);
    let endpoints: Vec<_> = plan.endpoints.iter().map(ToString::to_string).collect();
    let target = match plan.target {
        EndpointTarget::All => "",
        EndpointTarget::Leader => ", only the one that leads",
    };
    writeln!(text, "{}", title(plan))?;
    writeln!(text, "  endpoints: {}{target}", endpoints.join(", "))?;
    if let Some(watching) = &plan.watching {
        let (streams, watchers) = (watching.streams, watching.streams * watching.per_stream);
        writeln!(text, "  watchers: {watchers} on {streams} streams, of {} keys", watching.keys.len())?;
    }
    match (&plan.pace, plan.seconds_max, steps.filter(|steps| steps.are_wanted())) {
        _ if searches => writeln!(text, "  requests: until the highest rate is found")?,
        (_, _, Some(steps)) => writeln!(text, "  requests: {:?} at each rate", steps.step)?,
        (_, Some(limit), None) => writeln!(text, "  requests: for {limit:?}")?,
        (RunPace::Stages(_), None, None) => {}
        (_, None, None) if plan.total == LoadPlan::OPEN_END => {
            writeln!(text, "  requests: until the watchers have received all events")?
        }
        (_, None, None) => writeln!(text, "  requests: {}", plan.total)?,
    }
    match rates {
        _ if searches => writeln!(text, "  rate: searched, open loop")?,
        [_, ..] => writeln!(text, "  rates: {rates:?} per second, open loop")?,
        _ => writeln!(text, "  rate: {}", pace(plan))?,
    }
    if spec.key_bytes > 0 {
        writeln!(text, "  keys: {} of {} B", spec.keys, spec.key_bytes)?;
    }
    if spec.value_bytes > 0 {
        let kind = match spec.values {
            Values::Same => "one for all",
            Values::PerKey => "random, another for each key",
        };
        writeln!(text, "  values: {} B, {kind}", spec.value_bytes)?;
    }
    if let Some(warm_up) = steps.and_then(|steps| steps.warm_up) {
        writeln!(text, "  before it: {warm_up:?} that do not count")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::flags::{Cli, Command};
    use super::super::{plan, put};
    use super::shown;
    use clap::Parser;

    #[test]
    fn a_plan_is_shown_as_the_flags_ask_for_it() {
        let of = |line: &str| {
            let cli = Cli::try_parse_from(["loadgen", "put"].into_iter().chain(line.split(' '))).unwrap();
            let Command::Put(flags) = &cli.command else { panic!("it is put") };
            let plan = plan(&cli.global, cli.global.endpoints.clone(), put(flags).unwrap(), &flags.sending);
            shown(&plan.unwrap(), Some(&flags.sending.steps))
        };
        let head = |rest: &str| {
            format!("put, 8 clients on 8 connections\n  endpoints: 127.0.0.1:1, 127.0.0.1:2\n{rest}")
        };
        let cluster = "--dry-run --endpoints=127.0.0.1:1,127.0.0.1:2 --clients=8 --conns=4";
        for (line, expected) in [
            (
                "--total=50 --rate=10 --open-loop --val-size=256 --key-space-size=9 --random-values",
                "  requests: 50\n  rate: 10 per second, open loop\n  keys: 9 of 8 B\n\
                 \x20 values: 256 B, random, another for each key\n",
            ),
            (
                "--duration=30s",
                "  requests: for 30s\n  rate: as fast as replies arrive, closed loop\n  keys: 1 of 8 B\n\
                 \x20 values: 8 B, one for all\n",
            ),
            (
                "--rates=5,7 --step=2s",
                "  requests: 2s at each rate\n  rates: [5, 7] per second, open loop\n  keys: 1 of 8 B\n\
                 \x20 values: 8 B, one for all\n",
            ),
        ] {
            assert_eq!(of(&format!("{cluster} {line}")), head(expected), "{line}");
        }
    }
}
