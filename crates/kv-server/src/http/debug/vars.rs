//! `/debug/vars`: command line, limits, memory and Raft, in the form of Go's expvar.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use raft_node::Role;
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value, json};

use super::super::handler::{Http, response};
use config::shown;
use telemetry::metrics::resident_bytes;

/// Returns the arguments of the process, with passwords removed.
pub(super) fn command_line() -> Vec<String> {
    without_secrets(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    // The flag that may have the next word as its value.
    let mut flag: Option<String> = None;
    let hide = |word: String| match (flag.take(), word.strip_prefix('-')) {
        (Some(flag), _) if shown(&flag, &word) != word => shown(&flag, &word),
        (_, Some(name)) => {
            let name = name.trim_start_matches('-');
            match name.split_once('=') {
                Some((name, value)) if shown(name, value) != value => {
                    format!("--{name}={}", shown(name, value))
                }
                Some(_) => word,
                None => {
                    flag = Some(name.to_owned());
                    word
                }
            }
        }
        _ => word,
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
                let matched = its.matched.0;
                progress.insert(format!("{:x}", member.id), json!({ "match": matched, "next": matched + 1 }));
            }
        }
    }
    json!({
        "id": format!("{:x}", status.id),
        "term": status.term.0,
        "commit": status.commit.0,
        "lead": format!("{:x}", status.leader.unwrap_or(0)),
        "raftState": state,
        "applied": status.applied.0,
        "progress": progress,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out() {
        for (words, wanted) in [
            ("--discovery-password a --name x", "--discovery-password *** --name x"),
            ("-discovery-password=c y", "--discovery-password=*** y"),
            ("--discovery-password --name", "--discovery-password ***"),
            ("--discovery-user u:c", "--discovery-user u:***"),
            ("--discovery-user=u:c:c --enable-pprof", "--discovery-user=u:*** --enable-pprof"),
            ("--discovery-user u", "--discovery-user u"),
            ("--name discovery-password --enable-pprof", "--name discovery-password --enable-pprof"),
        ] {
            let shown = without_secrets(words.split(' ').map(str::to_owned));
            assert_eq!(shown.join(" "), wanted);
        }
    }
}
