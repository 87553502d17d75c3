//! What a put costs each stage that no second core can share, and the rate at which each would end.
//!
//! ```text
//!   request ─decode, encode─▶ command ─▶ Node (a lone voter) ─▶ log (memory) ─▶ Node ─▶ machine and store
//! ```
//!
//! * One thread does all of it in turn, so that each stage is timed alone; in a member each has a thread, or
//!   a task, and decoding has as many as there are connections' threads.
//! * Not in it: sockets, HTTP/2, the disk, and what a leader does for followers. `benches/serial-stages.sh`
//!   has them, from running members.
//! * Puts of 256 B to a million keys, with as many in an entry as are said. `PUTS=N` ends each row after so
//!   many.

use std::path::Path;
use std::time::{Duration, Instant};

use api::command::command::Kind;
use api::etcdserverpb::PutRequest;
use bytes::Bytes;
use mvcc::{Maintainer, MemoryBackend, Pressure, StoreOptions};
use prost::Message;
use raft_node::{
    Answer, Applier, ChangeCheck, CoreSetup, EmptyLog, Event, Fatal, LogPosition, Membership, Node,
    NodeSetup, RecoveredLog, StateMachine, StoreState, persist,
};
use state_machine::command::encode;
use state_machine::{EtcdMachine, Genesis, Outcome};
use wal::testing::SimFs;
use wal::{Wal, WalOptions};

const KEYS: u64 = 1_000_000;
const VALUE_BYTES: usize = 256;
const STAGES: [&str; 4] = ["decode, encode", "driver and Raft", "log, no disk", "apply"];

/// The machine, as a member has it.
struct Machine {
    machine: EtcdMachine,
    pressure: Pressure,
}

impl StateMachine for Machine {
    type Outcome = Outcome;

    fn applied(&self) -> LogPosition {
        self.machine.applied()
    }

    fn apply(&mut self, at: LogPosition, command: &Bytes, answer: Answer) -> Result<Option<Outcome>, Fatal> {
        self.machine.apply(at, command, answer).map_err(Fatal::of)
    }

    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
        self.pressure = self.machine.end_entry(at).map_err(Fatal::of)?;
        Ok(())
    }

    fn install(&mut self, _: LogPosition) -> Result<(), Fatal> {
        unreachable!("no other member sends a store")
    }
}

struct Member {
    node: Node<(), ()>,
    wal: Wal<SimFs>,
    applier: Applier<Machine, ()>,
    maintainer: Maintainer,
    spent: [Duration; STAGES.len()],
}

fn setup() -> NodeSetup {
    NodeSetup {
        core: CoreSetup {
            id: 1,
            heartbeat_ticks: 1,
            election_ticks: 10,
            timeout_ticks: 10..11,
            apply_bytes_max: 16 << 20,
            entry_bytes_max: 16 << 20,
            catch_up_entries: 5000,
            store: StoreState::Whole,
            empty_log: EmptyLog::New,
            membership: Some(Membership { voters: vec![1], learners: Vec::new() }),
            removed_by: state_machine::removed_by,
            keeps_voters: state_machine::keeps_voters,
            change_check: ChangeCheck::default(),
        },
        boot_nonce: 1,
        batch_bytes_max: 1 << 20,
        cache_bytes_max: 32 << 20,
        request_timeout_ticks: 100,
        read_retry_ticks: 5,
    }
}

impl Member {
    fn new() -> Self {
        let options = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };
        let wal = Wal::create(SimFs::new(), Path::new("/log"), b"", LogPosition::default(), options)
            .expect("create the log");
        let (writer, _, maintainer) =
            mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).expect("a fresh store");
        let genesis = Genesis { members: vec![api::etcdserverpb::Member { id: 1, ..Default::default() }] };
        let machine = EtcdMachine::new(writer, &genesis).expect("a fresh machine");
        let node = Node::open(&setup(), &[1], RecoveredLog::created(&wal), LogPosition::default());
        let applier = Applier::new(Machine { machine, pressure: Pressure::Calm });
        let node = node.expect("open the node");
        Member { node, wal, applier, maintainer, spent: [Duration::ZERO; STAGES.len()] }
    }

    fn timed<T>(&mut self, stage: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let done = work(self);
        self.spent[stage] += begin.elapsed();
        done
    }

    /// Puts what these requests ask for, as one entry.
    fn put(&mut self, requests: &[Bytes]) {
        let commands: Vec<Bytes> = self.timed(0, |_| {
            let decoded = requests.iter().map(|request| PutRequest::decode(request.clone()));
            decoded.map(|put| encode(Kind::Put(put.expect("a put")))).collect()
        });
        self.timed(1, |member| commands.into_iter().for_each(|command| member.node.offer(command, ())));
        self.settle();
    }

    /// Turns until nothing is left to do.
    fn settle(&mut self) {
        loop {
            let mut turn = self.timed(1, |member| member.node.turn().expect("a turn"));
            let jobs = std::mem::take(&mut turn.effects.persist);
            let is_idle = jobs.is_empty() && turn.apply.is_empty() && !turn.effects.more;
            if !jobs.is_empty() {
                let receipt = self.timed(2, |member| persist(&mut member.wal, jobs).expect("no disk").0);
                let durable = receipt.redeem().0;
                self.timed(1, |member| member.node.handle(Event::Durable(durable)).expect("it is synced"));
            }
            for job in turn.apply {
                let done = self.timed(3, |member| member.applier.apply(job).expect("apply"));
                if let Some(at) = done.entry {
                    self.timed(1, |member| member.node.handle(Event::Applied { index: at.index }))
                        .expect("it is applied");
                }
            }
            if is_idle {
                break;
            }
        }
        // Another thread does it in a member.
        if self.applier.machine().pressure != Pressure::Calm {
            self.maintainer.persist().expect("memory");
            let at = self.applier.applied();
            self.node.handle(Event::Checkpointed { at }).expect("a checkpoint");
        }
    }
}

fn requests(from: u64, count: u64) -> Vec<Bytes> {
    let put = |number: u64| {
        // Spread over all keys, and values that do not compress.
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = (number % KEYS).to_be_bytes().to_vec().into();
        let value = (0..VALUE_BYTES as u64 / 8)
            .flat_map(|word| (number ^ word << 32).rotate_left(word as u32 * 7).to_le_bytes());
        PutRequest { key, value: value.collect(), ..Default::default() }.encode_to_vec().into()
    };
    (from..from + count).map(put).collect()
}

#[expect(clippy::print_stdout, reason = "the table is what it is for")]
fn main() {
    let puts = std::env::var("PUTS").ok().and_then(|puts| puts.parse().ok()).unwrap_or(1_000_000);
    println!("| puts in an entry | {}, µs | busiest | puts/s at which it ends |", STAGES.join(", µs | "));
    println!("|--:|{}---|--:|", "--:|".repeat(STAGES.len()));
    for each in [1_u64, 10, 100, 1000] {
        let mut member = Member::new();
        member.settle();
        let puts = if each == 1 { puts / 10 } else { puts };
        // As many before as are measured: keys exist, and checkpoints come and go.
        for measured in [false, true] {
            if !measured {
                member.spent = Default::default();
            }
            let before = member.spent;
            for from in (0..puts).step_by(each as usize) {
                member.put(&requests(from, each));
            }
            if measured {
                let spent = member.spent.iter().zip(before).map(|(after, before)| *after - before);
                let micros: Vec<f64> = spent.map(|spent| spent.as_secs_f64() * 1e6 / puts as f64).collect();
                let (busiest, most) = (1..STAGES.len())
                    .map(|stage| (stage, micros[stage]))
                    .fold((0, 0.0), |most, stage| if stage.1 > most.1 { stage } else { most });
                let cells: Vec<String> = micros.iter().map(|each| format!("{each:.2}")).collect();
                println!("| {each} | {} | {} | {:.0} |", cells.join(" | "), STAGES[busiest], 1e6 / most);
            }
        }
    }
}
