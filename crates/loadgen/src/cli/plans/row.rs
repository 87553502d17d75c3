//! A load as the row of a report, and in a line.

use crate::run;
use crate::run::results::Measurement;
use crate::workload::stm::KEY_BYTES;
use crate::workload::{Workload, Writes};
use bench_report::metric::Middle;
use bench_report::model::{RowOperation, RowProtocol, RowSpec, RowTarget, Values};

/// What is sent, in a line.
pub fn title(load: &run::Plan) -> String {
    format!("{}, {} clients on {} connections", load.name(), load.clients, load.conns)
}

/// The load that agents sent together, each of which sent this one.
pub fn of_agents(load: &run::Plan, measurement: &Measurement) -> run::Plan {
    let mut whole = load.clone();
    (whole.clients, whole.conns, whole.threads) =
        (measurement.clients, measurement.conns, measurement.threads);
    if let Some(watching) = &mut whole.watching {
        watching.streams *= measurement.machines.len();
    }
    whole
}

/// What a load sends, for its row in a report.
pub fn spec(load: &run::Plan) -> RowSpec {
    let written = |Writes { key_bytes, value_bytes, key_space, values, .. }: &Writes| {
        (*key_bytes, *value_bytes, *key_space, *values)
    };
    let (operation, (key_bytes, value_bytes, keys, values)) = match &load.workload {
        Workload::Put(writes) => (RowOperation::Put, written(writes)),
        Workload::TxnPut { writes, .. } => (RowOperation::TxnPut, written(writes)),
        Workload::Range(range) | Workload::RangeStream(range) | Workload::Pages(range)
            if range.serializable =>
        {
            (RowOperation::RangeSerializable, (range.key.len(), 0, 1, Values::Same))
        }
        Workload::Range(range) | Workload::RangeStream(range) | Workload::Pages(range) => {
            (RowOperation::RangeLinearizable, (range.key.len(), 0, 1, Values::Same))
        }
        Workload::TxnMixed { writes, .. } => (RowOperation::TxnMixed, written(writes)),
        Workload::PutKeys { keys, value_bytes } => {
            (RowOperation::Put, (keys[0].len(), *value_bytes, keys.len() as u64, Values::PerKey))
        }
        Workload::Stm(stm) => (RowOperation::Stm, (KEY_BYTES, stm.value_bytes, stm.keys, Values::PerKey)),
        Workload::LeaseKeepAlive(_) => (RowOperation::LeaseKeepAlive, (0, 0, 1, Values::Same)),
        Workload::Ycsb(_) | Workload::Kubernetes(_) => (RowOperation::Mixed, (0, 0, 1, Values::Same)),
    };
    let operation = if load.measures_events() { RowOperation::Watch } else { operation };
    RowSpec {
        operation,
        protocol: RowProtocol::Grpc,
        key_bytes,
        value_bytes,
        keys,
        values,
        conns: load.conns,
        connect: load.connect,
        clients: load.clients,
        target: match load.target {
            run::EndpointTarget::All => RowTarget::All,
            run::EndpointTarget::Leader => RowTarget::Leader,
        },
        members: load.endpoints.len(),
        total_published: 0,
        total: 0,
        rounds: 1,
        rounds_published: None,
        rounds_as: Middle::Median,
        warm_up_total: 0,
        warm_up_published: 0,
        rate: None,
        streams: load.watching.as_ref().map_or(0, |watching| watching.streams),
        watchers_per_stream: load.watching.as_ref().map_or(0, |watching| watching.per_stream),
        sweep: None,
    }
}
