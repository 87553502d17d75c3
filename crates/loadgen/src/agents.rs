//! Distributed load generation: a controller sends one command line to agents on other machines, starts them
//! at the same time, and merges their results.
//!
//! ```text
//!   controller ──arguments──▶ agent: creates what it works on, opens its connections
//!              ◀──working, prepared
//!              ──begin──────▶ agent: runs
//!              ◀──working, measurement
//! ```
//!
//! * One JSON value per line, in both directions.
//! * Each agent sends the whole load of the command: two agents send twice as many requests. The first agent
//!   creates the objects that they share.
//! * An agent reports every second while it works or waits. An agent that stays silent is dropped, and the
//!   result states that its part is missing.
//! * Histograms are merged, so percentiles cover all requests. Time slices are not sent.
//!
//! Independent of the command line.

use crate::run::results::Measurement;
use bench_report::model::Machine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for sending a value.
const SEND_WAIT: Duration = Duration::from_secs(60);

/// A message, sent as a line.
pub trait Value: DeserializeOwned {
    /// Longer lines are rejected.
    const BYTES_MAX: usize;
}

/// The message is a command line.
impl Value for AgentOrder {
    const BYTES_MAX: usize = 1 << 20;
}

/// A measurement with all its failed positions and histograms takes some megabytes.
impl Value for AgentReply {
    const BYTES_MAX: usize = 256 << 20;
}

/// Message from the controller.
#[derive(Debug, Serialize, Deserialize)]
pub enum AgentOrder {
    /// Prepare: open the connections of this command. The arguments exclude the program name.
    Prepare {
        arguments: Vec<String>,
        place: AgentPlace,
    },
    Begin,
    /// Stop early and report the partial measurement.
    Stop,
}

/// Position of the agent among all agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPlace {
    pub index: u64,
    pub of: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum AgentReply {
    /// Heartbeat with the counts so far.
    Working {
        answered: u64,
        failed: u64,
    },
    Prepared,
    Ended(Box<Measurement>),
    /// The command is invalid for the agent, or failed.
    Refused(String),
}

pub struct AgentLine {
    stream: BufReader<TcpStream>,
    /// Received part of the next value.
    partial: Vec<u8>,
}

impl AgentLine {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream), partial: Vec::new() }
    }

    pub async fn send(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(value)?;
        text.push(b'\n');
        let sent = async {
            self.stream.write_all(&text).await?;
            self.stream.flush().await
        };
        timeout(SEND_WAIT, sent).await?
    }

    /// Receives the next value. Cancel-safe.
    pub async fn receive<T: Value>(&mut self) -> io::Result<T> {
        let room = T::BYTES_MAX.saturating_sub(self.partial.len()) as u64;
        (&mut self.stream).take(room).read_until(b'\n', &mut self.partial).await?;
        if self.partial.last() != Some(&b'\n') {
            if self.partial.len() >= T::BYTES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the other side sends too long a line",
                ));
            }
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side ended"));
        }
        Ok(serde_json::from_slice(&std::mem::take(&mut self.partial))?)
    }
}

/// Merges runs as if a single load generator had sent all requests; `None` without runs.
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
        for theirs in run.parts {
            match whole.parts.iter_mut().find(|ours| ours.kind() == theirs.kind()) {
                Some(ours) => {
                    ours.tally.merge(&theirs.tally);
                    ours.wall = ours.wall.max(theirs.wall);
                    if let Some((kind, _)) = ours.title.split_once(" Ops: ") {
                        let ops = ours.tally.succeeded_len() + ours.tally.failed_len();
                        ours.title = format!("{kind} Ops: {ops}\nDetails:");
                    }
                }
                None => whole.parts.push(theirs),
            }
        }
        whole
    })
}

/// Merges the descriptions of machines.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::failure::{CallFailure, Code};
    use crate::run::recorder::Tally;
    use tokio::net::TcpListener;

    fn measurement(latency_ms: u64) -> Measurement {
        let mut tally = Tally::new();
        (0..100).for_each(|_| tally.succeeded(7, Duration::from_millis(latency_ms), 10));
        tally.failed(&CallFailure::new(Code(14), "down"));
        let wall = Duration::from_secs(latency_ms);
        Measurement { tally, wall, planned: 101, clients: 5, busiest_thread: 0.5, ..Measurement::default() }
    }

    #[tokio::test]
    async fn a_measurement_arrives_as_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sending = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let sent = measurement(3);
        let mut sender = AgentLine::new(sending);
        sender.send(&AgentReply::Ended(Box::new(sent.clone()))).await.unwrap();
        let mut receiver = AgentLine::new(listener.accept().await.unwrap().0);
        let AgentReply::Ended(received) = receiver.receive().await.unwrap() else { panic!() };
        let latencies = |it: &Measurement| (it.tally.latencies_ns.len(), it.tally.latencies_ns.max());
        assert_eq!(latencies(&received), latencies(&sent));
        assert_eq!((received.failed_len(), received.per_second()), (1, sent.per_second()));
        drop(sender);
        assert!(receiver.receive::<AgentReply>().await.is_err());
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_refused_however_it_is_received() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sending = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut receiver = AgentLine::new(listener.accept().await.unwrap().0);
        let sender = tokio::spawn(async move { while sending.write_all(&[b'x'; 4096]).await.is_ok() {} });
        let refused = async {
            loop {
                // Simulates a select whose other branch is ready repeatedly.
                if let Ok(received) =
                    timeout(Duration::from_micros(200), receiver.receive::<AgentOrder>()).await
                {
                    return received.unwrap_err();
                }
            }
        };
        let error = timeout(Duration::from_secs(20), refused).await.expect("it is refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(receiver.partial.len(), AgentOrder::BYTES_MAX);
        drop(receiver);
        sender.await.unwrap();
    }

    #[test]
    fn merged_results_are_those_of_all_requests() {
        let whole = merged(vec![measurement(1), measurement(9)]).unwrap();
        assert_eq!((whole.tally.succeeded_len(), whole.failed_len(), whole.planned), (200, 2, 202));
        assert_eq!((whole.wall, whole.clients), (Duration::from_secs(9), 10));
        assert!((whole.tally.mean_ns - 5e6).abs() < 1.0, "{}", whole.tally.mean_ns);
        let p50 = whole.tally.latencies_ns.value_at_percentile(50.0) as f64;
        let p99 = whole.tally.latencies_ns.value_at_percentile(99.0) as f64;
        assert!((p50 - 1e6).abs() < 2e3 && (p99 - 9e6).abs() < 2e4, "{p50} {p99}");
        assert!(merged(Vec::new()).is_none());
    }
}
