//! Display of a difference: script, step, request, and a line diff of both responses.

use std::fmt::{Debug, Write};

use api::etcdserverpb::{
    AlarmResponse, CompactionResponse, DeleteRangeResponse, HashKvResponse, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseRevokeResponse, LeaseTimeToLiveResponse,
    MemberListResponse, PutResponse, RangeResponse, RangeStreamResponse, StatusResponse, TxnResponse,
    WatchResponse,
};
use api::v3electionpb::{CampaignResponse, LeaderResponse, ProclaimResponse, ResignResponse};
use api::v3lockpb::{LockResponse, UnlockResponse};
use bytes::Bytes;

use crate::recording::{Outcome, Step};

/// Lines of context before and after the difference.
const CONTEXT: usize = 4;
/// Maximum lines per side.
const LINES_MAX: usize = 60;
/// Maximum bytes per line, to shorten large values.
const LINE_BYTES_MAX: usize = 160;

pub fn difference(
    script: &str,
    number: usize,
    (step, method): (&Step, &str),
    why: &str,
    expected: &Outcome,
    actual: &Outcome,
) -> String {
    let mut text = format!("── {script}, step {number}: {why}\n   {}\n", step.call);
    if !step.why.is_empty() {
        let _ = writeln!(text, "   # {}", step.why);
    }
    if !step.request.is_null() {
        let _ = writeln!(text, "   request {}", shorten(&step.request.to_string()));
    }
    let (shown, also_shown) = (show(method, expected), show(method, actual));
    if shown == also_shown {
        // Two encodings of the same message differ only in their bytes.
        return text + &compare(&raw(expected), &raw(actual));
    }
    text + &compare(&shown, &also_shown)
}

fn show(method: &str, outcome: &Outcome) -> Vec<String> {
    let mut lines = vec![match (outcome.code.as_str(), outcome.message.as_str()) {
        ("", _) => format!("{} answers, and the call goes on", outcome.answers.len()),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code}: {message}"),
    }];
    for answer in &outcome.answers {
        lines.extend(show_answer(method, answer).lines().map(shorten));
    }
    lines
}

fn raw(outcome: &Outcome) -> Vec<String> {
    outcome.answers.iter().map(|answer| shorten(&format!("{answer:?}"))).collect()
}

fn shorten(line: &str) -> String {
    match line.char_indices().nth(LINE_BYTES_MAX) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes)", &line[..end], line.len()),
    }
}

fn show_answer(method: &str, bytes: &Bytes) -> String {
    match method.rsplit('/').next().unwrap_or_default() {
        "Range" => decoded::<RangeResponse>(bytes),
        "RangeStream" => decoded::<RangeStreamResponse>(bytes),
        "Put" => decoded::<PutResponse>(bytes),
        "DeleteRange" => decoded::<DeleteRangeResponse>(bytes),
        "Txn" => decoded::<TxnResponse>(bytes),
        "Compact" => decoded::<CompactionResponse>(bytes),
        "HashKV" => decoded::<HashKvResponse>(bytes),
        "Alarm" => decoded::<AlarmResponse>(bytes),
        "Status" => decoded::<StatusResponse>(bytes),
        "MemberList" => decoded::<MemberListResponse>(bytes),
        "LeaseGrant" => decoded::<LeaseGrantResponse>(bytes),
        "LeaseRevoke" => decoded::<LeaseRevokeResponse>(bytes),
        "LeaseTimeToLive" => decoded::<LeaseTimeToLiveResponse>(bytes),
        "LeaseLeases" => decoded::<LeaseLeasesResponse>(bytes),
        "LeaseKeepAlive" => decoded::<LeaseKeepAliveResponse>(bytes),
        "Watch" => decoded::<WatchResponse>(bytes),
        "Lock" => decoded::<LockResponse>(bytes),
        "Unlock" => decoded::<UnlockResponse>(bytes),
        "Campaign" => decoded::<CampaignResponse>(bytes),
        "Proclaim" => decoded::<ProclaimResponse>(bytes),
        "Leader" | "Observe" => decoded::<LeaderResponse>(bytes),
        "Resign" => decoded::<ResignResponse>(bytes),
        _ => format!("{bytes:?}"),
    }
}

fn decoded<M: prost::Message + Default + Debug>(bytes: &Bytes) -> String {
    match M::decode(bytes.clone()) {
        Ok(message) => format!("{message:#?}"),
        Err(error) => format!("undecodable, {error}: {bytes:?}"),
    }
}

/// Returns the lines between the first and the last difference, `-` for expected and `+` for actual.
fn compare(expected: &[String], actual: &[String]) -> String {
    let same = |(a, b): &(&String, &String)| a == b;
    let head = expected.iter().zip(actual).take_while(same).count();
    let rest = (expected.len() - head).min(actual.len() - head);
    let tail = expected.iter().rev().zip(actual.iter().rev()).take(rest).take_while(same).count();
    let mut text = String::new();
    for line in &expected[head.saturating_sub(CONTEXT)..head] {
        let _ = writeln!(text, "      {line}");
    }
    for (sign, lines) in [('-', expected), ('+', actual)] {
        let changed = &lines[head..lines.len() - tail];
        for line in changed.iter().take(LINES_MAX) {
            let _ = writeln!(text, "     {sign}{line}");
        }
        if changed.len() > LINES_MAX {
            let _ = writeln!(text, "     {sign}… {} lines more", changed.len() - LINES_MAX);
        }
    }
    for line in expected[expected.len() - tail..].iter().take(CONTEXT) {
        let _ = writeln!(text, "      {line}");
    }
    text
}

#[test]
fn only_the_lines_around_a_difference_are_shown() {
    let lines = |changed: &str| {
        (0..20).map(|n| if n == 9 { changed.to_owned() } else { n.to_string() }).collect::<Vec<_>>()
    };
    let text = compare(&lines("old"), &lines("new"));
    let shown: Vec<_> = text.lines().map(str::trim).collect();
    assert_eq!(shown, ["5", "6", "7", "8", "-old", "+new", "10", "11", "12", "13"]);
}
