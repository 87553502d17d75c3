//! `/debug/vars`: command line, limits, memory and Raft, in the form of Go's expvar.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use raft_node::Role;
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value, json};

use super::super::handler::{Http, response};
use crate::metrics::resident_bytes;

/// Flags whose values are passwords.
const SECRETS: [&str; 1] = ["discovery-password"];

/// Arguments of the process. Passwords are left out.
pub(super) fn command_line() -> Vec<String> {
    without_secrets(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut hides_next = false;
    let hide = |word: String| {
        let hides = std::mem::take(&mut hides_next);
        let name = word.trim_start_matches('-');
        match SECRETS.iter().find(|secret| name.starts_with(**secret)) {
            Some(secret) if word.starts_with('-') && !hides => {
                hides_next = !name.contains('=');
                if hides_next { word } else { format!("--{secret}=***") }
            }
            _ if hides => "***".to_owned(),
            _ => word,
        }
    };
    words.map(hide).collect()
}

pub(super) async fn answer(State(http): State<Http>) -> Response {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let vars = [
        ("cmdline", json!(command_line())),
        ("file_descriptor_limit", json!(limit)),
        ("memstats", json!({ "Sys": resident_bytes() })),
        ("raft.status", raft(&http).await),
    ];
    let lines: Vec<String> = vars.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    response(StatusCode::OK, "application/json; charset=utf-8", format!("{{\n{}\n}}\n", lines.join(",\n")))
}

async fn raft(http: &Http) -> Value {
    let status = http.member.status();
    let state = match status.role {
        Role::Leader => "StateLeader",
        Role::Candidate => "StateCandidate",
        Role::Follower => "StateFollower",
    };
    let mut progress = Map::new();
    if status.role == Role::Leader {
        for member in http.member.members().unwrap_or_default() {
            if let Some(its) = http.member.raft.progress_of(member.id).await {
                let next = its.matched + 1;
                progress.insert(format!("{:x}", member.id), json!({ "match": its.matched, "next": next }));
            }
        }
    }
    json!({
        "id": format!("{:x}", status.id),
        "term": status.term,
        "commit": status.commit,
        "lead": format!("{:x}", status.leader.unwrap_or(0)),
        "raftState": state,
        "applied": status.applied,
        "progress": progress,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out() {
        let words = ["kv-server", "--discovery-password", "a b", "--name", "x", "-discovery-password=c", "y"];
        let shown = without_secrets(words.iter().map(ToString::to_string));
        let wanted =
            ["kv-server", "--discovery-password", "***", "--name", "x", "--discovery-password=***", "y"];
        assert_eq!(shown, wanted);
    }
}
