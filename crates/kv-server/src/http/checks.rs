//! `/livez` and `/readyz`: named checks, each of which can be requested, excluded, or shown.

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http::StatusCode;

use super::handler::{Http, plain, query_values};

/// A set of checks under one path, in the order in which they are shown. etcd has none.
#[derive(Clone, Copy)]
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
    /// The checks that determine whether the process should be restarted.
    pub(super) const LIVE: Checks = Checks { path: "/livez", checks: &[Check::SerializableRead] };
    /// The checks that determine whether it should receive requests.
    pub(super) const READY: Checks = Checks {
        path: "/readyz",
        checks: &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner],
    };

    /// Returns the path of all checks, and one path for each, as in etcd.
    pub(super) fn routes(self) -> Router<Http> {
        let route = |path: &str, checks: &'static [Check], may_exclude: bool| {
            let answer = move |State(http): State<Http>, request: Request| async move {
                let query = request.uri().query();
                let excluded: Vec<_> = query_values(query, "exclude").filter(|_| may_exclude).collect();
                let chosen = checks.iter().filter(|check| !excluded.iter().any(|name| name == check.name()));
                self.answer(&http, chosen, query).await
            };
            Router::new().route(path, any(answer))
        };
        let each = self.checks.iter().map(|check| {
            route(&format!("{}/{}", self.path, check.name()), std::slice::from_ref(check), false)
        });
        each.fold(route(self.path, self.checks, true), Router::merge)
    }

    async fn answer(
        self,
        http: &Http,
        chosen: impl Iterator<Item = &'static Check>,
        query: Option<&str>,
    ) -> Response {
        let mut report = String::new();
        let mut healthy = true;
        for check in chosen {
            let name = check.name();
            let result = check.run(http).await;
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
            return plain(StatusCode::SERVICE_UNAVAILABLE, &report);
        }
        let shown = if query_values(query, "verbose").next().is_some() { report } else { String::new() };
        plain(StatusCode::OK, &format!("{shown}ok"))
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

    async fn run(self, http: &Http) -> Result<(), String> {
        let member = &http.member;
        match self {
            Check::DataCorruption => {
                let is_stopped = member.is_stopped_as_corrupt();
                if is_stopped { Err("alarm activated: CORRUPT".to_owned()) } else { Ok(()) }
            }
            // Reading the alarms is a read of the local store, as good as any other.
            Check::SerializableRead => member.alarms().map(drop).map_err(|error| error.to_string()),
            Check::LinearizableRead => http.linearizable.check().await,
            Check::NonLearner if member.roster.is_learner() => Err("not supported for learner".to_owned()),
            Check::NonLearner => Ok(()),
        }
    }
}
