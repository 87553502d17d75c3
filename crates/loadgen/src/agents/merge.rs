//! The results of several runs as those of one.

use crate::run::results::Measurement;
use bench_report::model::Machine;

/// As if all had been sent by one load generator; `None` without runs. Their parts are in the same order,
/// because all have sent the same load.
pub fn merged(runs: Vec<Measurement>) -> Option<Measurement> {
    runs.into_iter().reduce(|mut whole, run| {
        whole.tally.merge(&run.tally);
        whole.wall = whole.wall.max(run.wall);
        whole.client_cpu += run.client_cpu;
        whole.threads += run.threads;
        whole.busiest_thread = whole.busiest_thread.max(run.busiest_thread);
        whole.intended_per_second =
            whole.intended_per_second.zip(run.intended_per_second).map(|(ours, theirs)| ours + theirs);
        whole.clients += run.clients;
        whole.conns += run.conns;
        whole.machines.extend(run.machines);
        whole.sent_bytes += run.sent_bytes;
        whole.received_bytes += run.received_bytes;
        whole.planned += run.planned;
        whole.capped |= run.capped;
        whole.partial = whole.partial.or(run.partial);
        for (ours, theirs) in whole.parts.iter_mut().zip(run.parts) {
            ours.tally.merge(&theirs.tally);
            ours.wall = ours.wall.max(theirs.wall);
        }
        whole
    })
}

/// All machines as one.
pub fn machine(all: &[Machine]) -> Machine {
    let names = |of: fn(&Machine) -> &String| {
        let mut names: Vec<&str> = Vec::new();
        all.iter().map(|machine| of(machine).as_str()).for_each(|name| {
            if !names.contains(&name) {
                names.push(name);
            }
        });
        names.join(", ")
    };
    Machine {
        host: names(|machine| &machine.host),
        processor: names(|machine| &machine.processor),
        processors: all.iter().map(|machine| machine.processors).sum(),
        architecture: names(|machine| &machine.architecture),
        memory_bytes: all.iter().map(|machine| machine.memory_bytes).sum(),
        system: names(|machine| &machine.system),
        ..Machine::default()
    }
}
