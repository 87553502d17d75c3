//! A server that is stopped for two seconds: an open loop counts the delayed requests, a closed loop does
//! not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use api::etcdserverpb::RangeRequest;
use common::{Behaviour, Server};
use loadgen::{Endpoint, Measurement, Pace, Run, Workload};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const STALL: Duration = Duration::from_secs(2);
/// Little work, so that a slow machine can keep up.
const PER_SECOND: f64 = 1_000.0;
const TOTAL: u64 = 4_000;
const CLIENTS: usize = 20;
const CHILD: &str = "LOADGEN_TEST_SERVES";

/// A server in a separate process, because a signal stops a whole process.
struct Process(Child, Endpoint);

impl Process {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serves_as_the_process_that_is_stopped", "--ignored", "--nocapture"]);
        let mut child = command.env(CHILD, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("serving at ").map(|(_, endpoint)| endpoint.parse().unwrap()));
        Self(child, endpoint.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Helper process of the tests below; not a test.
#[test]
#[ignore = "does nothing unless the test below starts it"]
fn serves_as_the_process_that_is_stopped() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let server = Server::start(Behaviour::Answers);
    println!("serving at {}", server.endpoint);
    // Runs until the starting test finishes in any way.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Runs at this pace, with a server stall of two seconds after the first second.
fn stalled(pace: Pace) -> Measurement {
    let process = Process::start();
    let read = Workload::Range(RangeRequest { key: "k".into(), ..Default::default() });
    let run = Run { clients: CLIENTS, conns: 10, pace, ..Run::new(process.1.clone(), read, TOTAL) }
        .start()
        .unwrap();
    while run.progress().answered < PER_SECOND as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.signal(Signal::STOP);
    std::thread::sleep(STALL);
    process.signal(Signal::CONT);
    run.finish().unwrap()
}

fn over(measurement: &Measurement, seconds: f64) -> u64 {
    let latencies = &measurement.tally.latencies_ns;
    latencies.len() - latencies.count_between(0, (seconds * 1e9) as u64)
}

/// Way in which a run stops while its server is unresponsive.
#[derive(Clone, Copy, Debug)]
enum End {
    Interrupted,
    TimeLimit,
    NoEndpoint,
}

/// Runs an open loop with a server that stops after the first replies, until the run stops.
fn ended(end: End) -> (Measurement, Duration) {
    let process = Process::start();
    let read = Workload::Range(RangeRequest { key: "k".into(), ..Default::default() });
    let time_limit = Duration::from_secs(2);
    let run = Run {
        clients: CLIENTS,
        conns: 10,
        pace: Pace::Open(PER_SECOND),
        patience: Duration::from_millis(500),
        seconds_max: matches!(end, End::TimeLimit).then_some(time_limit),
        ..Run::new(process.1.clone(), read, 1_000_000)
    }
    .start()
    .unwrap();
    while run.progress().answered < 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopped_at = Instant::now();
    match end {
        End::Interrupted => {
            process.signal(Signal::STOP);
            std::thread::sleep(Duration::from_secs(1));
            let (progress, of) = (run.progress(), run.by_endpoint().remove(0));
            let waited = progress.oldest_wait(&progress.waiting).unwrap();
            assert!(waited > Duration::from_millis(800), "{waited:?}");
            assert!(progress.waiting.overdue > 600, "{:?}", progress.waiting);
            assert_eq!((of.waiting.in_flight, progress.waiting.in_flight), (20, 20));
            run.control().stop("interrupted");
            (run.finish().unwrap(), stopped_at.elapsed())
        }
        End::TimeLimit => {
            process.signal(Signal::STOP);
            // Replies are awaited for the patience of the run.
            (run.finish().unwrap(), stopped_at.elapsed())
        }
        End::NoEndpoint => {
            process.signal(Signal::KILL);
            (run.finish().unwrap(), stopped_at.elapsed())
        }
    }
}

#[test]
fn a_run_that_ends_early_counts_every_request_that_was_due() {
    for end in [End::Interrupted, End::TimeLimit, End::NoEndpoint] {
        let (measurement, stall) = ended(end);
        let tally = &measurement.tally;
        let stall_ns = stall.as_nanos() as u64;
        assert!(tally.slowest_ns >= stall_ns * 8 / 10, "{end:?}: {} of {stall:?}", tally.slowest_ns);
        // One request per millisecond was due: half of those during the stall waited for more than half of
        // it.
        let (slow, due) = (over(&measurement, stall.as_secs_f64() / 2.0), stall.as_millis() as u64 / 2);
        assert!(slow >= due * 7 / 10, "{end:?}: {slow} of {due}");
        assert!(tally.succeeded_len() < tally.counted_len(), "{end:?}: {:?}", tally.unanswered);
        // Calls without a reply are errors in all three cases.
        assert!(measurement.errors() >= CLIENTS as u64 / 2, "{end:?}: {}", measurement.errors());
    }
}

#[test]
fn an_open_loop_accounts_for_every_request_that_should_have_been_sent() {
    let open = stalled(Pace::Open(PER_SECOND));
    assert_eq!((open.tally.succeeded_len(), open.tally.failed_len()), (TOTAL, 0));
    // 1,000 a second were due during the stall: a request due t after its start waited at least 2 s − t.
    for (seconds, due) in [(1.9, 100), (1.0, 1_000), (0.5, 1_500)] {
        let slow = over(&open, seconds);
        assert!(slow >= due * 9 / 10, "{slow} of {due} requests took over {seconds} s");
    }
    assert!(open.tally.slowest_ns >= 1_950_000_000, "{}", open.tally.slowest_ns);
    let p999 = open.tally.latencies_ns.value_at_percentile(99.9);
    assert!(p999 >= 1_900_000_000, "{p999}");
    // Sent one by one as callers became free: measured from sending, one request per caller was slow, and a
    // few more if the machine stalled.
    let service = &open.tally.services_ns;
    let served_slowly = service.len() - service.count_between(0, 1_000_000_000);
    assert!(over(&open, 1.0) >= 10 * served_slowly, "{served_slowly} requests were served slowly");
    assert!(open.tally.delayed >= 1_800, "{}", open.tally.delayed);
    assert!(open.tally.lateness.overdue >= 1_800, "{:?}", open.tally.lateness);

    let closed = stalled(Pace::AtMost(PER_SECOND));
    assert_eq!(closed.tally.succeeded_len(), TOTAL);
    // A closed loop has one slow request per caller.
    let (hidden, counted) = (over(&closed, 0.5), over(&open, 0.5));
    assert!(counted >= 10 * hidden, "closed loop {hidden}, open loop {counted}");
    let stall = closed.hidden_stall().unwrap();
    assert!(stall.longest >= STALL * 9 / 10 && stall.requests >= CLIENTS as u64 / 2, "{stall:?}");
    assert_eq!(open.hidden_stall(), None);
}
