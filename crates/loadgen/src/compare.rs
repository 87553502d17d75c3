//! Two programs side by side: fresh clusters of both, each row measured on both in turn.
//!
//! ```text
//!   per row:  start A, start B ─▶ warm up both ─▶ A B, A B, … rounds ─▶ medians, ratios ─▶ stop both
//! ```
//!
//! * A machine's speed drifts; only figures taken in turn can be divided by each other, so rounds alternate and
//!   figures are medians.
//! * Every process of a comparison is a child of this one and ends with it; no other process is ever touched.
//! * Errors and lost writes of either side stand in the result: speed without correct answers is no speed.

mod cluster; // processes of one program
mod row; // what is measured
mod table; // figures, medians, Markdown

pub use cluster::Program;
pub use row::{Row, rows};
pub use table::{Comparison, Figures};

use crate::admin;
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::run::{self, Measurement};
use crate::server;
use crate::summary::Summary;
use bytes::Bytes;
use cluster::Cluster;
use row::Target;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Of a row's requests, the share that is sent before the first round and not counted.
const WARM_UP: f64 = 0.1;
/// After the warm-up, so that what it left to be written is written.
const PAUSE: Duration = Duration::from_millis(300);

/// What is compared, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    pub programs: [Program; 2],
    /// Of each cluster.
    pub members: usize,
    pub rounds: usize,
    pub rows: Vec<Row>,
    /// Clusters keep their files below it, and nothing stays behind.
    pub dir: PathBuf,
    /// Worker threads of the load generator.
    pub threads: usize,
}

/// Why a comparison ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("start a cluster of {program}")]
    Cluster { program: String, source: cluster::Error },
    #[error("row {row} on {program}")]
    Run { row: String, program: String, source: run::Error },
    #[error("row {row} on {program}")]
    Admin { row: String, program: String, source: admin::Error },
    #[error("row {row} on {program}")]
    Server { row: String, program: String, source: server::Error },
}

/// One program on the row being measured.
struct Side<'a> {
    program: &'a Program,
    cluster: Cluster,
    /// Where the row's requests go.
    endpoints: Vec<Endpoint>,
}

/// Measures all rows; what was measured before an error stays in `comparison`. `remark` hears of each step.
pub async fn run(
    plan: &Plan,
    comparison: &mut Comparison,
    remark: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    for row in &plan.rows {
        let sides = [start(plan, row, 0).await?, start(plan, row, 1).await?];
        for (index, side) in sides.iter().enumerate() {
            comparison.versions[index] = side.cluster.version.clone();
            let warm_up = ((row.total as f64 * WARM_UP) as u64).max(1);
            measure(plan, row, side, warm_up).await?;
        }
        tokio::time::sleep(PAUSE).await;
        for round in 1..=plan.rounds {
            for (index, side) in sides.iter().enumerate() {
                let figures = measure(plan, row, side, row.total).await?;
                let (name, program) = (&row.name, &side.program.name);
                let rate = figures.requests_per_second;
                remark(&format!("{name}, round {round} of {}: {program} {rate:.0} requests/s", plan.rounds));
                comparison.add(row, index, figures);
            }
        }
        for (index, side) in sides.iter().enumerate() {
            comparison.set_keys(row, index, count_keys(row, side).await?);
        }
        for side in sides {
            side.cluster.stop().await;
        }
    }
    Ok(())
}

async fn start<'a>(plan: &'a Plan, row: &Row, index: usize) -> Result<Side<'a>, Error> {
    let program = &plan.programs[index];
    let cluster = Cluster::start(program, &plan.dir, plan.members).await;
    let cluster = cluster.map_err(|source| Error::Cluster { program: program.name.clone(), source })?;
    let failed = |source| Error::Admin { row: row.name.clone(), program: program.name.clone(), source };
    let everyone = cluster.endpoints();
    admin::put(&everyone[0], Bytes::from_static(row::READ_KEY), row.value()).await.map_err(failed)?;
    let endpoints = match row.target {
        Target::All => everyone,
        Target::Leader => {
            let members = admin::survey(&everyone).await.map_err(failed)?;
            vec![admin::leader(&members).map_err(failed)?.clone()]
        }
    };
    Ok(Side { program, cluster, endpoints })
}

/// One run of `total` requests of the row.
async fn measure(plan: &Plan, row: &Row, side: &Side<'_>, total: u64) -> Result<Figures, Error> {
    let name = || (row.name.clone(), side.program.name.clone());
    let failed = |source| {
        let (row, program) = name();
        Error::Server { row, program, source }
    };
    let probes = side.cluster.probes();
    let earlier = server::read(&probes).await.map_err(failed)?;
    let measurement = load(run::Plan {
        conns: row.conns,
        clients: row.clients,
        threads: plan.threads,
        total,
        endpoints: side.endpoints.clone(),
        ..run::Plan::new(side.endpoints[0].clone(), row.workload(), total)
    });
    let measurement = measurement.await.map_err(|source| {
        let (row, program) = name();
        Error::Run { row, program, source }
    })?;
    let later = server::read(&probes).await.map_err(failed)?;
    Ok(Figures::of(&Summary::of(&measurement), &server::spent(&probes, &earlier, &later)))
}

/// Runs a plan beside this task; dropped, it stops the run.
async fn load(plan: run::Plan) -> Result<Measurement, run::Error> {
    struct StopOnDrop(Arc<Control>);
    impl Drop for StopOnDrop {
        fn drop(&mut self) {
            self.0.stop("nobody waits for the result");
        }
    }
    let run = tokio::task::spawn_blocking(|| plan.start()).await.expect("starting does not panic")?;
    let _stop = StopOnDrop(run.control());
    while !run.progress().finished {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run.finish()
}

async fn count_keys(row: &Row, side: &Side<'_>) -> Result<i64, Error> {
    let failed = |source| Error::Admin { row: row.name.clone(), program: side.program.name.clone(), source };
    admin::count_keys(&side.endpoints[0]).await.map_err(failed)
}
