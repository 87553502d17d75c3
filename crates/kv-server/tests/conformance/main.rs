//! Conformance: this server answers as a real etcd 3.7.1 did, byte for byte.
//!
//!   recordings/*.json ──▶ request bytes ──▶ fresh member ──▶ answer bytes ──▶ same as recorded?
//!
//! * Each recording is one story, told to a member of its own that starts with an empty store.
//! * The few fields that differ from run to run in etcd itself are masked on both sides; each recording lists
//!   them.
//! * Where this server means to answer otherwise, `exceptions` says so and why. An exception that is no
//!   longer needed fails the test.
//!
//! `interop/` makes the recordings from real etcd, never from this server. To hold the replay against etcd
//! itself, set `KV_CONFORMANCE_SERVER` to its binary: then no exception counts, and everything must match.

mod client; // raw bytes over gRPC
mod exceptions; // where this server differs on purpose
mod recording; // the files
mod report; // how a difference is told
mod server; // one fresh member
mod wire; // masking

use std::collections::VecDeque;
use std::sync::Mutex;

use client::Client;
use exceptions::Expected;
use recording::{Outcome, Recording, Step};
use server::Server;

/// Members started at once: a start mostly waits, and more than this would make timeouts a matter of luck.
const MEMBERS_MAX: usize = 4;

/// Below this, recordings have been lost.
const STEPS_MIN: usize = 350;

#[test]
fn every_recorded_answer_is_given_again() {
    let recordings = recording::read_all();
    let steps: usize = recordings.iter().map(|recording| recording.steps.len()).sum();
    assert!(steps >= STEPS_MIN, "{steps} recorded steps, {STEPS_MIN} are the least");
    let against_etcd = server::overridden();
    let queue = Mutex::new(recordings.iter().collect::<VecDeque<_>>());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..MEMBERS_MAX {
            scope.spawn(|| {
                while let Some(recording) = take(&queue) {
                    let told = replay(recording, against_etcd);
                    failures.lock().expect("no thread panics while it holds the list").extend(told);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("all threads are done");
    assert!(failures.is_empty(), "{} of {steps} steps differ\n\n{}", failures.len(), failures.join("\n"));
}

fn take<'a>(queue: &Mutex<VecDeque<&'a Recording>>) -> Option<&'a Recording> {
    queue.lock().expect("no thread panics while it holds the queue").pop_front()
}

/// Tells one recording to a fresh member; returns a report for each step that came out otherwise.
fn replay(recording: &Recording, against_etcd: bool) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime for one client");
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return vec![format!("{}: {why}", recording.script)],
    };
    runtime.block_on(async {
        let mut failures = Vec::new();
        let mut client = match Client::connect(server.client_port()).await {
            Ok(client) => client,
            Err(error) => return vec![format!("{}: connect: {error}", recording.script)],
        };
        for (position, step) in recording.steps.iter().enumerate() {
            let number = position + 1;
            let actual = client.call(step).await.masked(recording.varying(&step.method));
            let expected = step.outcome().masked(recording.varying(&step.method));
            let exception = exceptions::find(&recording.script, number).filter(|_| !against_etcd);
            let verdict = match exception {
                None => judge(&expected, &actual),
                Some(exception) => judge_exception(&exception.expected, &expected, &actual),
            };
            if let Err(why) = verdict {
                failures.push(report::difference(&recording.script, number, step, why, &expected, &actual));
            }
            if matches!(exception, Some(exception) if exception.expected.ends_the_script()) {
                break;
            }
        }
        failures
    })
}

fn judge(expected: &Outcome, actual: &Outcome) -> Result<(), &'static str> {
    if expected == actual { Ok(()) } else { Err("the answer differs") }
}

fn judge_exception(exception: &Expected, expected: &Outcome, actual: &Outcome) -> Result<(), &'static str> {
    if expected == actual {
        return Err("an exception is listed, but the answer is etcd's: drop the exception");
    }
    let (Expected::Code(code) | Expected::NotYet(code)) = exception;
    if actual.code == *code { Ok(()) } else { Err("not even the code that the exception allows") }
}

#[test]
fn every_exception_names_a_recorded_step() {
    let recordings = recording::read_all();
    for exception in exceptions::ALL {
        let known = recordings.iter().any(|recording| {
            recording.script == exception.script
                && exception.steps.iter().all(|step| (1..=recording.steps.len()).contains(step))
        });
        assert!(known, "{exception:?}");
    }
}

/// A step that sends `bytes` and was answered with nothing.
#[cfg(test)]
fn step(method: &str, bytes: &str) -> Step {
    serde_json::from_value(serde_json::json!({
        "call": "a call", "request": {}, "code": "OK", "message": "", "method": method, "streams": false,
        "request_bytes": bytes, "answer_bytes": [],
    }))
    .expect("the shape of a step")
}

#[test]
fn a_difference_is_told_with_script_step_and_call() {
    let nothing = Outcome { code: "OK".into(), message: String::new(), answers: vec![] };
    let refused = Outcome { code: "NotFound".into(), message: "no".into(), answers: vec![] };
    let text = report::difference("story", 7, &step("/x.Y/Z", ""), "differs", &nothing, &refused);
    for part in ["story", "step 7", "a call", "differs", "-OK", "+NotFound: no"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}
