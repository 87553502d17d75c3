//! Processor time of programs on this machine outside of the measurement.

use super::{Probe, ServerFigures, machine_cpu_seconds};
use crate::client::endpoint::Endpoint;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Measures from its creation on.
pub struct ForeignCpu {
    machine_seconds: Option<f64>,
    begin: Instant,
    took: Option<(f64, Duration)>,
}

impl ForeignCpu {
    pub fn begin() -> Self {
        Self { machine_seconds: machine_cpu_seconds(), begin: Instant::now(), took: None }
    }

    /// Stops measuring.
    pub fn end(&mut self) {
        let machine = machine_cpu_seconds().zip(self.machine_seconds);
        self.took = machine.map(|(later, earlier)| (later - earlier, self.begin.elapsed()));
    }

    /// Returns the share of this machine's processors; `None` if the usage of a local server is unknown.
    pub fn share(&self, client: Duration, probes: &[Probe], spent: Option<&ServerFigures>) -> Option<f64> {
        let (machine, took) = self.took?;
        let here: Vec<bool> = probes.iter().map(Probe::is_here).collect();
        let servers = match spent {
            Some(spent) => {
                let spent = spent.processes.iter().zip(&here).filter(|(_, here)| **here);
                spent.map(|(process, _)| process.cpu_seconds).sum()
            }
            None if here.contains(&true) => return None,
            None => 0.0,
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let foreign = machine - servers - client.as_secs_f64();
        Some((foreign / took.as_secs_f64() / processors).clamp(0.0, 1.0))
    }
}

impl Probe {
    /// Reports whether the server runs on this machine.
    fn is_here(&self) -> bool {
        match self {
            Probe::Process { .. } => true,
            Probe::Metrics(endpoint) => is_own(endpoint),
        }
    }
}

/// Reports whether an endpoint is local: only a local address can be bound.
fn is_own(endpoint: &Endpoint) -> bool {
    let addresses = (endpoint.host(), 0).to_socket_addrs().into_iter().flatten();
    { addresses }.any(|address| TcpListener::bind(address).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::ProcessFigures;
    use super::*;

    #[test]
    fn the_rest_of_a_machine_is_that_of_other_programs() {
        let processors = std::thread::available_parallelism().unwrap().get() as f64;
        let took = Some((processors * 4.0, Duration::from_secs(8)));
        let counted = ForeignCpu { took, ..ForeignCpu::begin() };
        let process = |name: &str| ProcessFigures {
            name: name.into(),
            cpu_seconds: processors,
            user_seconds: None,
            resident_bytes: 0,
            resident_peak_bytes: None,
            bytes_written: None,
        };
        let spent = ServerFigures { processes: vec![process("a"), process("b")], members: None };
        let probe = |endpoint: &str| Probe::Metrics(endpoint.parse().unwrap());
        let (here, elsewhere) = (|| probe("127.0.0.1:1"), || probe("192.0.2.1:1"));
        let client = Duration::from_secs_f64(processors);
        for (probes, spent, expected) in [
            (vec![here(), here()], Some(&spent), Some(0.125)),
            (vec![here(), elsewhere()], Some(&spent), Some(0.25)),
            (vec![elsewhere(), elsewhere()], None, Some(0.375)),
            (vec![elsewhere(), here()], None, None),
        ] {
            assert_eq!(counted.share(client, &probes, spent), expected, "{probes:?}");
        }
    }
}
