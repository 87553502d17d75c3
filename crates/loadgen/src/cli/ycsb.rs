//! `ycsb`: loads records, then plans the workload on them.

use super::flags::Global;
use super::flags::ycsb::YcsbFlags;
use super::refusal::{ExitReason, of_flags};
use super::{measure, plans, progress};
use crate::agents::AgentPlace;
use crate::output::text::chain;
use crate::run::LoadPlan;
use crate::run::schedule::RunPace;
use crate::workload::Workload;
use crate::workload::ycsb::{Mix, Ycsb};
use bytes::Bytes;

/// Far below the length limit of a gRPC message (4 GiB). A server rejects requests above its limit.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// Returns the workload of the flags, over existing records or ones to be loaded.
pub fn workload(flags: &YcsbFlags, place: AgentPlace) -> Result<Ycsb, String> {
    let &YcsbFlags { workload, records, scan_max, ref val_size, .. } = flags;
    if records == 0 {
        return Err("--records=0 leaves nothing to work on".into());
    }
    if scan_max == 0 || i64::try_from(scan_max).is_err() {
        return Err(format!("--scan-max={scan_max}: expected 1 to {}", i64::MAX));
    }
    if val_size.most() > VALUE_BYTES_MAX {
        return Err(format!("--val-size={val_size} is more than the {VALUE_BYTES_MAX} bytes that fit"));
    }
    if flags.sending.steps.are_wanted() {
        return Err("--rates and --find-max-rate are not offered for ycsb: give one --rate".into());
    }
    let (mix, distribution) =
        Mix::of_workload(workload).ok_or(format!("--workload={workload} is unknown"))?;
    let (mix, distribution) = (flags.mix.unwrap_or(mix), flags.distribution.unwrap_or(distribution));
    let mut ycsb = Ycsb::new(mix, distribution, records, !loads(flags, place));
    ycsb.inserter = (place.index, place.of);
    ycsb.prefix = Bytes::copy_from_slice(flags.prefix.as_bytes());
    ycsb.sizes = val_size.clone();
    ycsb.scan_max = scan_max;
    ycsb.serializable = flags.consistency == "s";
    ycsb.seed = rand::random();
    Ok(ycsb)
}

/// Reports whether this load generator loads the records: the first of several does.
fn loads(flags: &YcsbFlags, place: AgentPlace) -> bool {
    !flags.skip_load && place.index == 0
}

/// Loads the records, unless they exist or another load generator loads them, and plans the measurement.
pub async fn loaded(global: &Global, flags: &YcsbFlags, place: AgentPlace) -> Result<LoadPlan, ExitReason> {
    let ycsb = of_flags(workload(flags, place))?;
    let planned = |workload| plans::plan(global, global.endpoints.clone(), workload, &flags.sending);
    let plan = of_flags(planned(Workload::Ycsb(ycsb.clone())))?;
    if loads(flags, place) && !flags.sending.dry_run {
        let workload = Workload::Ycsb(ycsb.load_phase());
        let (total, pace) = (flags.records, RunPace::Unlimited);
        load(global, LoadPlan { workload, total, seconds_max: None, pace, ..plan.clone() }, "records")
            .await?;
    }
    Ok(plan)
}

/// Sends a load that creates the objects of a measurement. Each operation must succeed.
pub async fn load(global: &Global, load: LoadPlan, what: &str) -> Result<(), ExitReason> {
    let total = load.total;
    let prepared = progress::prepared(load).await?;
    let loaded = progress::run(prepared.begin(), std::future::pending()).await;
    let loaded = loaded.map_err(|error| chain(&error))?;
    let succeeded = loaded.tally.succeeded_len();
    if loaded.partial.as_deref() == Some(progress::INTERRUPTED) {
        return Err(ExitReason::Interrupted(format!(
            "interrupted with {succeeded} of {total} {what} loaded"
        )));
    }
    if succeeded < total {
        let failure = loaded.tallies().flat_map(|tally| tally.failures.iter()).next();
        let reason = match (&loaded.partial, failure) {
            (Some(reason), _) => reason.clone(),
            (None, Some((code, failures))) => format!("{code}: {}", failures.sample),
            (None, None) => "no reply".into(),
        };
        return Err(ExitReason::Run(format!("loaded {succeeded} of {total} {what}: {reason}")));
    }
    let (per_second, seconds) = (loaded.per_second(), loaded.wall.as_secs_f64());
    Ok(measure::say(global, &format!("Loaded {total} {what} in {seconds:.1} s, {per_second:.0}/s.\n"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::{Cli, Command};
    use clap::Parser;

    /// Summarizes mix, sizes and first key of a command line, or returns the error.
    fn read(line: &str) -> Result<String, String> {
        let cli = Cli::try_parse_from(["loadgen", "ycsb"].into_iter().chain(line.split_whitespace()))
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        let Command::Ycsb(flags) = &cli.command else { panic!("{line}") };
        let Ycsb { mix, sizes, scan_max, serializable, prefix, .. } =
            workload(flags, AgentPlace { index: 0, of: 1 })?;
        Ok(format!("{mix} {sizes} {scan_max} {serializable} {prefix:?}"))
    }

    #[test]
    fn flags_become_a_workload_or_are_refused_with_the_reason() {
        for (line, expected) in [
            ("", "read=0.5,update=0.5 1000 100 false b\"ycsb/\""),
            ("--workload=E --val-size=5..9", "insert=0.05,scan=0.95 5..9 100 false b\"ycsb/\""),
            (
                "--mix=read=7,rmw=3 --distribution=hotspot --consistency=s --prefix=x",
                "read=7,rmw=3 1000 100 true b\"x\"",
            ),
        ] {
            assert_eq!(read(line).as_deref(), Ok(expected), "{line}");
        }
        for (line, reason) in [
            ("--records=0", "--records=0 leaves nothing to work on"),
            ("--scan-max=0", "--scan-max=0: expected 1 to 9223372036854775807"),
            ("--val-size=2000000000", "--val-size=2000000000 is more than the 1073741824 bytes that fit"),
            ("--rates=5", "--rates and --find-max-rate are not offered for ycsb: give one --rate"),
            (
                "--workload=g",
                "error: invalid value 'g' for '--workload <LETTER>': expected a, b, c, d, e or f",
            ),
        ] {
            assert_eq!(read(line).unwrap_err(), reason, "{line}");
        }
    }
}
