//! `/health`: one word, and the reason if the member is unhealthy.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;

use super::handler::{Http, plain, query_values, response};
use api::etcdserverpb::AlarmType;

/// The scope of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Checks whether the cluster can serve requests.
    Cluster,
    /// Checks whether this member can serve from its local state.
    Member,
}

pub(super) async fn answer(State(http): State<Http>, request: Request) -> Response {
    let query = request.uri().query();
    let serializable = query_values(query, "serializable").next().is_some_and(|value| value == "true");
    let reach = if serializable { Reach::Member } else { Reach::Cluster };
    let excluded: Vec<_> = query_values(query, "exclude").collect();
    let health = &http.member.metrics.health;
    match sick(&http, reach, &excluded).await {
        None => {
            health.successes.inc();
            response(
                StatusCode::OK,
                "text/plain; charset=utf-8",
                r#"{"health":"true","reason":""}"#.to_owned(),
            )
        }
        Some(reason) => {
            health.failures.inc();
            tracing::warn!(reason, "health check failed");
            let text = serde_json::json!({ "health": "false", "reason": reason });
            plain(StatusCode::SERVICE_UNAVAILABLE, &text.to_string())
        }
    }
}

/// Returns the first reason to be unhealthy, in etcd's order.
async fn sick(http: &Http, reach: Reach, excluded: &[Cow<'_, str>]) -> Option<String> {
    let member = &http.member;
    let alarms = match member.alarms() {
        Ok(alarms) => alarms,
        Err(error) => return Some(format!("RANGE ERROR:{error}")),
    };
    for alarm in alarms {
        let name = match AlarmType::try_from(alarm.alarm) {
            Ok(AlarmType::Nospace) => "NOSPACE",
            // An alarm of another member.
            Ok(AlarmType::Corrupt) if !member.is_stopped_as_corrupt() => continue,
            Ok(AlarmType::Corrupt) => "CORRUPT",
            Ok(AlarmType::None) | Err(_) => "UNKNOWN",
        };
        if !excluded.iter().any(|excluded| excluded == name) {
            return Some(format!("ALARM {name}"));
        }
    }
    match reach {
        Reach::Member => None,
        Reach::Cluster if member.status().leader.is_none() => Some("RAFT NO LEADER".to_owned()),
        Reach::Cluster => http.linearizable.check().await.err().map(|error| format!("RANGE ERROR:{error}")),
    }
}
