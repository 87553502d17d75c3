//! Measures the cost of a put in the apply loop: `cargo run --release -p state-machine --example
//! apply -- [PUTS] [KEYS]`.
//!
//! Applies puts of 8-byte keys in random order and 256-byte values, 50 to an entry, and prints
//! nanoseconds per put. Under `valgrind --tool=callgrind --toggle-collect='apply::measured'` it
//! counts instructions, which do not depend on the load of the machine.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measuring tool reads clocks, talks to its user and may die"
)]

use std::time::{Duration, Instant};

use api::etcdserverpb::PutRequest;
use bytes::Bytes;
use mvcc::{LogPosition, Maintainer, MemoryBackend, Pressure, StoreOptions};
use state_machine::command::{self, Kind};
use state_machine::{Answer, EtcdMachine, Genesis};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ENTRY_PUTS: u64 = 50;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let (puts, keys) = (arguments.next().unwrap_or(1_000_000), arguments.next().unwrap_or(100_000));
    let (writer, _store, mut maintainer) =
        mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    let mut machine = EtcdMachine::new(writer, &Genesis::default()).unwrap();
    let mut at = LogPosition::new(0, 1);
    for first in (0..keys).step_by(ENTRY_PUTS as usize) {
        measured(&mut machine, &mut maintainer, &mut at, &entry(first, keys));
    }
    let (mut took, mut answered) = (Duration::ZERO, 0);
    for first in (0..puts).step_by(ENTRY_PUTS as usize) {
        let commands = entry(first, keys);
        let begin = Instant::now();
        answered += measured(&mut machine, &mut maintainer, &mut at, &commands);
        took += begin.elapsed();
    }
    println!(
        "{puts} puts of {keys} keys: {:.0} ns each ({answered} answered)",
        took.as_nanos() as f64 / puts as f64
    );
}

/// Encodes the commands of an entry like the service.
fn entry(first: u64, keys: u64) -> Vec<Bytes> {
    let put = |number: u64| {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
        let value = vec![b'v'; 256];
        command::encode(Kind::Put(PutRequest {
            key: Bytes::copy_from_slice(&key.to_be_bytes()),
            value: value.into(),
            ..PutRequest::default()
        }))
    };
    (first..first + ENTRY_PUTS).map(put).collect()
}

/// Applies an entry. Returns the number of successful commands.
#[inline(never)]
fn measured(
    machine: &mut EtcdMachine,
    maintainer: &mut Maintainer,
    at: &mut LogPosition,
    commands: &[Bytes],
) -> usize {
    at.index += 1;
    let mut answered = 0;
    for command in commands {
        assert!(machine.cost(command).is_some());
        answered += usize::from(machine.apply(*at, command, Answer::Wanted).unwrap().is_some());
    }
    if machine.end_entry(*at).unwrap() != Pressure::Calm {
        maintainer.persist().unwrap();
    }
    answered
}
