//! A load as the row of a report, and as a line of text.

use crate::run;
use crate::run::results::Measurement;
use crate::run::schedule::RunPace;
use crate::workload::kubernetes::Kubernetes;
use crate::workload::stm::KEY_BYTES;
use crate::workload::{Workload, Writes};
use bench_report::metric::Middle;
use bench_report::model::{Connect, RowOperation, RowProtocol, RowSpec, RowTarget, Values};
use bench_report::number;

/// Describes the load in a line.
pub fn title(load: &run::LoadPlan) -> String {
    let (clients, conns) = (load.clients, connections(load));
    format!(
        "{}, {} on {}",
        load.name(),
        number::counted(clients, "client"),
        number::counted(conns, "connection")
    )
}

/// Counts the connections that requests may use: each object has one to each of its endpoints.
fn connections(load: &run::LoadPlan) -> usize {
    match load {
        run::LoadPlan { protocol: RowProtocol::HttpJson, clients, .. } => *clients,
        run::LoadPlan { connect: Connect::One, conns, .. }
        | run::LoadPlan { target: run::EndpointTarget::Leader, conns, .. } => *conns,
        run::LoadPlan { conns, endpoints, .. } => conns * endpoints.len(),
    }
}

/// Describes the pace, and whether replies are awaited.
pub fn pace(load: &run::LoadPlan) -> String {
    match load.pace {
        RunPace::Unlimited => "as fast as replies arrive, closed loop".into(),
        RunPace::AtMost(rate) => format!("at most {rate} per second, closed loop"),
        RunPace::Open(rate) => format!("{rate} per second, open loop"),
        RunPace::Stages(stages) => format!("{stages}, open loop"),
    }
}

/// Describes the pace and the composition of a mix.
pub fn how(load: &run::LoadPlan) -> String {
    let pace = pace(load);
    match &load.workload {
        Workload::Ycsb(ycsb) => {
            let kind = if ycsb.serializable { "serializable" } else { "linearizable" };
            let (mix, records, sizes) = (ycsb.mix, ycsb.loaded(), &ycsb.sizes);
            let distribution = ycsb.distribution();
            format!("{pace}; {mix} of {records} records of {sizes} B, {distribution}, reads are {kind}")
        }
        Workload::TxnMixed { read_share, .. } => {
            format!("{pace}; {:.0} % ranges, the others puts", read_share * 100.0)
        }
        Workload::Kubernetes(cluster) => {
            let Kubernetes { nodes, pods, churn, api_servers, .. } = cluster;
            format!(
                "{pace}; {nodes} nodes, {pods} pods, {churn} replaced per second, {api_servers} API servers"
            )
        }
        _ => pace,
    }
}

/// Returns the combined load of agents that each sent this one. Stages remain per agent.
pub fn of_agents(load: &run::LoadPlan, measurement: &Measurement) -> run::LoadPlan {
    let (mut whole, agents) = (load.clone(), measurement.machines.len());
    if whole.total != run::LoadPlan::OPEN_END {
        whole.total *= agents as u64;
    }
    if let RunPace::AtMost(rate) | RunPace::Open(rate) = &mut whole.pace {
        *rate *= agents as f64;
    }
    (whole.clients, whole.conns, whole.threads) =
        (measurement.clients, measurement.conns, measurement.threads);
    if let Some(watching) = &mut whole.watching {
        watching.streams *= agents;
    }
    whole
}

pub fn spec(load: &run::LoadPlan) -> RowSpec {
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
        protocol: load.protocol,
        key_bytes,
        value_bytes,
        keys,
        values,
        conns: connections(load),
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
        rate: match load.pace {
            RunPace::Open(rate) => Some(rate),
            RunPace::Unlimited | RunPace::AtMost(_) | RunPace::Stages(_) => None,
        },
        streams: load.watching.as_ref().map_or(0, |watching| watching.streams),
        watchers_per_stream: load.watching.as_ref().map_or(0, |watching| watching.per_stream),
        sweep: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::endpoint::Endpoint;
    use bench_report::model::Machine;

    #[test]
    fn agents_send_the_sum_of_what_each_sends() {
        let workload = Workload::LeaseKeepAlive([].into());
        let plan = run::LoadPlan::new("a:1".parse().unwrap(), workload, 100);
        let measurement = Measurement {
            clients: 10,
            conns: 4,
            machines: vec![Machine::default(); 2],
            ..Measurement::default()
        };
        let sent = |pace, total| {
            let sent = of_agents(&run::LoadPlan { pace, total, ..plan.clone() }, &measurement);
            (how(&sent), sent.total, spec(&sent).rate, sent.clients)
        };
        let open_end = run::LoadPlan::OPEN_END;
        for (pace, total, expected) in [
            (RunPace::Open(50.0), 100, ("100 per second, open loop", 200, Some(100.0), 10)),
            (RunPace::AtMost(5.5), open_end, ("at most 11 per second, closed loop", open_end, None, 10)),
        ] {
            let (how, total, rate, clients) = sent(pace, total);
            assert_eq!((how.as_str(), total, rate, clients), expected);
        }
    }

    #[test]
    fn a_title_counts_the_connections_that_are_opened() {
        let endpoints: Vec<Endpoint> = ["a:1", "b:1", "c:1"].map(|name| name.parse().unwrap()).into();
        let plan = run::LoadPlan::new(endpoints[0].clone(), Workload::LeaseKeepAlive([].into()), 1);
        let plan = run::LoadPlan { clients: 1000, conns: 100, endpoints, ..plan };
        let one = run::LoadPlan { connect: Connect::One, ..plan.clone() };
        let leader = run::LoadPlan { target: run::EndpointTarget::Leader, ..plan.clone() };
        let http = run::LoadPlan { protocol: RowProtocol::HttpJson, ..plan.clone() };
        let single = run::LoadPlan { clients: 1, conns: 1, ..one.clone() };
        for (plan, expected) in [
            (plan, "1,000 clients on 300 connections"),
            (one, "1,000 clients on 100 connections"),
            (leader, "1,000 clients on 100 connections"),
            (http, "1,000 clients on 1,000 connections"),
            (single, "1 client on 1 connection"),
        ] {
            assert_eq!(title(&plan), format!("lease-keepalive, {expected}"));
        }
    }
}
