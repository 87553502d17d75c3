//! Conformance: responses are equal to those of a real etcd, byte for byte.
//!
//!   recordings/*.json ──▶ request bytes ──▶ new member ──▶ response bytes ──▶ compare
//!
//! * Each recording is replayed to a separate member with an empty store.
//! * The few fields that vary between runs of etcd itself are masked on both sides; each recording lists
//!   them.
//! * `exceptions` lists intended differences and their reasons. An exception that is no longer needed fails
//!   the test.
//!
//! A matrix (recordings/*.matrix) has calls repeated with several credentials; `matrix` replays it.
//!
//! `interop/` creates the recordings from real etcd, never from this server. To check the replay against etcd
//! itself, set `KV_CONFORMANCE_SERVER` to its binary: then exceptions are ignored, and all outcomes must
//! match.

#[path = "../common/mod.rs"]
mod common; // members as processes

mod client; // raw bytes over gRPC
mod exceptions; // intended differences
mod fields; // single fields of encoded messages
mod matrix; // each call with each credential
mod play; // steps of a script
mod recording; // file format
mod report; // display of differences
mod server; // member under test
mod wire; // masking

use std::collections::VecDeque;
use std::sync::Mutex;

use client::Client;
use exceptions::Expected;
use play::Player;
use prost::Message as _;
use recording::{Act, Outcome, Recording, Step};
use server::Server;

/// Maximum number of concurrently started members: starts mostly wait, and more of them would cause timeouts.
const MEMBERS_MAX: usize = 4;

/// Minimum number of steps. Fewer mean that recordings are missing.
const STEPS_MIN: usize = 2400;

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
                    let reports = replay(recording, against_etcd);
                    failures.lock().expect("no thread panics while it holds the list").extend(reports);
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

/// Replays a recording to a new member; returns a report for each step with a different outcome.
fn replay(recording: &Recording, against_etcd: bool) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime for one client");
    let server = Server::start(&recording.flags);
    runtime.block_on(async {
        match Client::connect(server.client_port()).await {
            Ok(client) => play_all(recording, client, against_etcd).await,
            Err(error) => vec![format!("{}: connect: {error}", recording.script)],
        }
    })
}

/// Plays the steps in sequence. Stops at the first different act on a stream, since later responses would be
/// matched incorrectly.
async fn play_all(recording: &Recording, client: Client, against_etcd: bool) -> Vec<String> {
    let mut failures = Vec::new();
    let mut player = Player::new(recording, client);
    for (position, step) in recording.steps.iter().enumerate() {
        let (number, method) = (position + 1, recording.method_of(position));
        let actual = player.play(position).await;
        let expected = step.outcome().masked(recording.varying(method));
        let exception = match step.act {
            Act::Call | Act::Expect | Act::End if !against_etcd => {
                exceptions::find(&recording.script, number, method)
            }
            _ => None,
        };
        let verdict = match exception {
            None => judge(&expected, &actual),
            Some(exception) => judge_exception(exception, &expected, &actual),
        };
        if let Err(why) = verdict {
            let what = (step, method);
            failures.push(report::difference(&recording.script, number, what, why, &expected, &actual));
            if step.act != Act::Call {
                return failures;
            }
        }
        if exception.is_some_and(Expected::ends_the_script) {
            return failures;
        }
    }
    for (stream, left) in player.finish() {
        failures.push(format!("── {}: at the end, {stream} has {left:?}, unexpected", recording.script));
    }
    failures
}

fn judge(expected: &Outcome, actual: &Outcome) -> Result<(), &'static str> {
    if expected == actual { Ok(()) } else { Err("the answer differs") }
}

fn judge_exception(exception: &Expected, expected: &Outcome, actual: &Outcome) -> Result<(), &'static str> {
    if expected == actual {
        return Err("an exception is listed, but the answer is etcd's: drop the exception");
    }
    match exception {
        Expected::Code(code) | Expected::NotYet(code) if actual.code == *code => Ok(()),
        Expected::Code(_) | Expected::NotYet(_) => Err("not even the code that the exception allows"),
        Expected::OtherParts => {
            let (expected, actual) = (events(expected), events(actual));
            let common = expected.len().min(actual.len());
            let are_same = common > 0 && expected[..common] == actual[..common];
            if are_same { Ok(()) } else { Err("not even the events that the exception allows") }
        }
    }
}

/// Returns the events of all responses of a watch.
fn events(outcome: &Outcome) -> Vec<api::mvccpb::Event> {
    let responses =
        outcome.answers.iter().map(|answer| api::etcdserverpb::WatchResponse::decode(&answer[..]));
    responses.flat_map(|response| response.expect("a response of a watch").events).collect()
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
    for unbuilt in exceptions::UNBUILT {
        let calls = |recording: &Recording| {
            (0..recording.steps.len()).any(|step| recording.method_of(step).starts_with(unbuilt.service))
        };
        assert!(recordings.iter().any(calls), "{unbuilt:?}");
    }
}

#[test]
fn an_exception_fails_where_the_answer_is_etcds_and_where_it_is_another_one() {
    let outcome = |code: &str| Outcome { code: code.into(), ..Outcome::default() };
    let unbuilt = Expected::NotYet("Unimplemented");
    assert!(judge_exception(&unbuilt, &outcome("OK"), &outcome("Unimplemented")).is_ok());
    assert!(judge_exception(&unbuilt, &outcome("OK"), &outcome("OK")).is_err_and(|why| why.contains("drop")));
    assert!(judge_exception(&unbuilt, &outcome("OK"), &outcome("Internal")).is_err());
}

/// Returns a step that sends `bytes` and expects an empty outcome.
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
    let text = report::difference("story", 7, (&step("/x.Y/Z", ""), "/x.Y/Z"), "differs", &nothing, &refused);
    for part in ["story", "step 7", "a call", "differs", "-OK", "+NotFound: no"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}
