//! `--rates` and `--find-max-rate`: one load sent open loop at several rates, and a report with a row for
//! each.

use super::flags::Global;
use super::flags::steps::StepFlags;
use super::measure::{self, Lines};
use super::refusal::{Refusal, of_flags};
use super::{outputs, progress};
use crate::compare::steps::{self, Stepped};
use crate::compare::{self, Origin, Subject};
use crate::run;
use crate::workload::stm::KEY_BYTES;
use crate::workload::{Workload, Writes};
use bench_report::model::{Operation, Protocol, RowSpec, SuiteResult, Target, Values};
use std::process::ExitCode;

/// Sends the load of `load` at every rate and reports it.
pub async fn run(
    global: &Global,
    flags: &StepFlags,
    from: u64,
    load: run::Plan,
) -> Result<ExitCode, Refusal> {
    let rates = of_flags(flags.rates(from))?;
    outputs::check(&flags.outputs)?;
    let spec = spec(&load);
    let title = format!("{}, {} clients on {} connections", load.workload.name(), load.clients, load.conns);
    let subject = Subject { name: "cluster".into(), origin: Origin::Endpoints(load.endpoints.clone()) };
    let plan = compare::Plan::of_steps(format!("{title}, by rate"), subject.clone(), load.threads);
    let mut report = compare::report(&plan, measure::command_line())?;
    report.suites.push(SuiteResult {
        id: "rates".into(),
        title: title.clone(),
        about: format!(
            "One load at several rates, open loop: latency counts from the moment at which a request should have \
             been sent. Each rate was sent for {:?} before it was measured for {:?}.",
            flags.warm_up_of_steps(),
            flags.step
        ),
        source_url: None,
        medium: None,
        rows: Vec::new(),
    });
    let stepped = Stepped { rates, step: flags.step, warm_up: flags.warm_up_of_steps(), load, spec, title };
    let mut lines = Lines::default();
    let whole = tokio::select! {
        ended = steps::run(&plan, &subject, &stepped, &mut report, &mut lines) => ended.map(|()| true)?,
        () = progress::interrupted() => false,
    };
    report.partial = (!whole).then(|| progress::INTERRUPTED.into());
    measure::write(global, &flags.outputs, &report)?;
    if !whole {
        return Ok(ExitCode::from(progress::INTERRUPTED_STATUS));
    }
    let Some(verdict) = &report.search else { return Ok(ExitCode::SUCCESS) };
    measure::say(global, &format!("\n{verdict}\n"))?;
    Ok(if verdict.requests_per_second.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a load sends, for its row in a report.
pub fn spec(load: &run::Plan) -> RowSpec {
    let written = |Writes { key_bytes, value_bytes, key_space, values, .. }: &Writes| {
        (*key_bytes, *value_bytes, *key_space, *values)
    };
    let (operation, (key_bytes, value_bytes, keys, values)) = match &load.workload {
        Workload::Put(writes) => (Operation::Put, written(writes)),
        Workload::TxnPut { writes, .. } => (Operation::TxnPut, written(writes)),
        Workload::Range(range) | Workload::RangeStream(range) if range.serializable => {
            (Operation::RangeSerializable, (range.key.len(), 0, 1, Values::Same))
        }
        Workload::Range(range) | Workload::RangeStream(range) => {
            (Operation::RangeLinearizable, (range.key.len(), 0, 1, Values::Same))
        }
        Workload::TxnMixed { writes, .. } => (Operation::TxnMixed, written(writes)),
        Workload::PutKeys { keys, value_bytes } => {
            (Operation::Put, (keys[0].len(), *value_bytes, keys.len() as u64, Values::PerKey))
        }
        Workload::Stm(stm) => (Operation::Stm, (KEY_BYTES, stm.value_bytes, stm.keys, Values::PerKey)),
        Workload::LeaseKeepAlive(_) => (Operation::LeaseKeepAlive, (0, 0, 1, Values::Same)),
        Workload::Ycsb(_) | Workload::Kubernetes(_) => (Operation::Mixed, (0, 0, 1, Values::Same)),
    };
    RowSpec {
        operation,
        protocol: Protocol::Grpc,
        key_bytes,
        value_bytes,
        keys,
        values,
        conns: load.conns,
        connect: load.connect,
        clients: load.clients,
        target: match load.target {
            run::Target::All => Target::All,
            run::Target::Leader => Target::Leader,
        },
        members: load.endpoints.len(),
        total_published: 0,
        total: 0,
        rounds: 1,
        rounds_published: None,
        warm_up_total: 0,
        warm_up_published: 0,
        rate: None,
        streams: load.watching.as_ref().map_or(0, |watching| watching.streams),
        watchers_per_stream: load.watching.as_ref().map_or(0, |watching| watching.per_stream),
        sweep: None,
    }
}
