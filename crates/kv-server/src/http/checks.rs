//! `/livez` and `/readyz`: named checks, each of which can be asked for, left out, or shown.

use axum::response::Response;
use http::StatusCode;

use super::handler::{Http, not_found, query_values, refuse, response};
use crate::member::Member;

/// A set of checks under one path.
pub(super) struct Checks {
    path: &'static str,
    checks: &'static [Check],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Checks {
    /// Should the process be left alone?
    pub(super) const LIVE: Checks = Checks { path: "/livez", checks: &[Check::SerializableRead] };
    /// Should it be sent work?
    pub(super) const READY: Checks = Checks {
        path: "/readyz",
        checks: &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner],
    };

    /// Runs all checks, or the one that was named.
    pub(super) async fn answer(&self, http: &Http, only: Option<&str>, query: Option<&str>) -> Response {
        let excluded: Vec<&str> = query_values(query, "exclude").collect();
        let chosen: Vec<Check> = self
            .checks
            .iter()
            .copied()
            .filter(|check| only.map_or(!excluded.contains(&check.name()), |only| only == check.name()))
            .collect();
        if only.is_some() && chosen.is_empty() {
            return not_found();
        }
        let mut report = String::new();
        let mut healthy = true;
        for check in chosen {
            let name = check.name();
            let result = check.run(&http.member).await;
            http.member.metrics.health.checked(&self.path[1..], name, result.is_ok());
            match result {
                Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
                Err(error) => {
                    healthy = false;
                    report.push_str(&format!("[-]{name} failed: {error}\n"));
                }
            }
        }
        if !healthy {
            tracing::warn!(path = self.path, output = report, "health check failed");
            return refuse(StatusCode::SERVICE_UNAVAILABLE, &report);
        }
        let shown = if query_values(query, "verbose").next().is_some() { report } else { String::new() };
        response(StatusCode::OK, "text/plain; charset=utf-8", format!("{shown}ok\n"))
    }
}

impl Check {
    const fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    async fn run(self, member: &Member) -> Result<(), String> {
        match self {
            Check::DataCorruption => {
                let is_stopped = member.is_stopped_as_corrupt();
                if is_stopped { Err("alarm activated: CORRUPT".to_owned()) } else { Ok(()) }
            }
            // Reading the alarms is a read of the local store, as good as any other.
            Check::SerializableRead => member.alarms().map(drop).map_err(|error| error.to_string()),
            Check::LinearizableRead => member.read_point().await.map_err(|error| error.to_string()),
            Check::NonLearner if member.roster.is_learner() => Err("not supported for learner".to_owned()),
            Check::NonLearner => Ok(()),
        }
    }
}
