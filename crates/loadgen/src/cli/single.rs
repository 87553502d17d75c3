//! Runs and reports a single load at a single rate.

use super::exporter::Exporter;
use super::flags::Global;
use super::flags::limits::{self, Limit, LimitResult};
use super::flags::outputs::Outputs;
use super::outputs;
use super::progress::{ProgressView, WithoutTerminal};
use super::refusal::ExitReason;
use super::terminal::{first_error, note, print, write_file};
use super::{measure, progress};
use crate::client::admin;
use crate::compare::steps::rows_of_run;
use crate::compare::{self, Subject, SubjectOrigin};
use crate::load::title;
use crate::output::hdr;
use crate::output::summary::Summary;
use crate::output::text::{self, chain};
use crate::run::results::{KindResults, Measurement};
use crate::run::{ActiveRun, Run};
use crate::server::{self, ForeignCpu, Probe, ServerFigures};
use bench_report::compose;
use bench_report::model::{
    KubernetesLoad, Load, Notice, Operation, Pace, Report, SINGLE_RUN, SuiteResult, YcsbLoad,
};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Format of `--json`.
#[derive(Serialize)]
struct RunDocument<'a> {
    workload: &'static str,
    endpoints: Vec<String>,
    conns: usize,
    clients: usize,
    #[serde(flatten)]
    shown: &'a ResultDocument<'a>,
    /// The run as a report, for `loadgen report`.
    report: &'a Report,
}

#[derive(Serialize)]
struct ResultDocument<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    server: Option<&'a ServerFigures>,
    /// Warnings about the metrics.
    notices: &'a [Notice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    slo: &'a [LimitResult],
}

/// Options of a single run in addition to its plan.
#[derive(Clone, Default)]
pub struct Wants<'a> {
    pub limits: &'a [Limit],
    pub outputs: Outputs,
    pub hdr: Option<PathBuf>,
}

/// Runs a load at one rate and reports it; also returns the requests per second.
pub async fn run(
    global: &Global,
    load: &Load,
    plan: Run,
    cluster: &admin::ClusterView,
    wants: Wants<'_>,
    background: impl Future<Output = String>,
) -> Result<(ExitCode, f64), ExitReason> {
    let probes = probes(global, cluster);
    outputs::check(&wants.outputs)?;
    wants.hdr.as_deref().map_or(Ok(()), outputs::check_writable)?;
    let title = title(load, plan.endpoints.len());
    let mut report = described(load, &plan, cluster, &title)?;
    let sent = plan.clone();
    let prepared = progress::prepared(plan).await?;
    let earlier = server::read(&probes).await;
    let mut foreign = ForeignCpu::begin();
    let measurement = shown(global, prepared.begin(), background).await?;
    foreign.end();
    let later = server::read(&probes).await;
    let spent = earlier.and_then(|earlier| server::spent(&probes, &earlier, &later?));
    let members = cluster.members_len.filter(|_| global.server_pids.is_empty());
    let summary = Summary::of(&measurement);
    let foreign = foreign.share(measurement.client_cpu, &probes, spent.as_ref().ok());
    let mut lost = Vec::new();
    if let Err(error) = &spent {
        let notice = Notice::warning(format!("no figures of the servers: {}", chain(error)));
        report.notices.push(notice.clone());
        lost.push(notice);
    }
    let figures = spent.ok().map(|spent| ServerFigures { members, ..spent });
    let errors_max = limits::errors_max(global.max_errors, wants.limits);
    let kept = limits::results(wants.limits, errors_max, &measurement);
    let rows = rows_of_run(&measurement, figures.clone(), foreign, load, &title);
    let notices = [rows[0].notices.clone(), lost].concat();
    let shown = ResultDocument { summary: &summary, server: figures.as_ref(), notices: &notices, slo: &kept };
    report.took_seconds = measurement.wall.as_secs_f64();
    report.partial.clone_from(&measurement.partial);
    report.suites[0].rows = rows;
    let hdr = wants.hdr.as_deref().map(|path| write_file(path, &hdr_log(&report, &measurement)));
    // Continues after a failed write, because the measurement cannot be repeated.
    first_error([
        show(global, &sent, &shown, &report),
        outputs::write(&wants.outputs, &report, &compose::page(&report)),
        hdr.unwrap_or(Ok(())),
    ])?;
    Ok((verdict(&measurement, errors_max, &kept), measurement.per_second()))
}

/// Encodes all latencies, or the latencies of each kind of operation.
fn hdr_log(report: &Report, measurement: &Measurement) -> String {
    let parts = measurement.parts.iter();
    let parts = parts.map(|part: &KindResults| (part.kind().to_owned(), &part.tally.latencies_ns));
    let mut histograms: Vec<_> = parts.collect();
    if histograms.is_empty() {
        histograms.push((String::new(), &measurement.tally.latencies_ns));
    }
    hdr::log(report.started_unix_seconds, measurement.wall.as_secs_f64(), &histograms)
}

/// Describes the run as a report without metrics.
fn described(load: &Load, plan: &Run, cluster: &admin::ClusterView, title: &str) -> Result<Report, String> {
    let origin = SubjectOrigin::Endpoints(cluster.endpoints());
    let subject = Subject { name: "cluster".into(), origin };
    let described = compare::ComparisonPlan::of_steps(title.into(), subject, plan.threads);
    let mut report = compare::report(&described, measure::command_line())?;
    let version = cluster.named.first().map(|member| member.status.version.clone());
    report.sides[0].version = version.unwrap_or_default();
    report.setup.members = cluster.members_len.unwrap_or(cluster.endpoints().len());
    report.setup.rounds = 1;
    report.suites.push(SuiteResult {
        id: SINGLE_RUN.into(),
        title: title.into(),
        about: about(load, plan),
        source_url: None,
        medium: None,
        rows: Vec::new(),
    });
    Ok(report)
}

/// Describes the load in a sentence.
fn about(load: &Load, plan: &Run) -> String {
    let limit = match plan.seconds_max {
        Some(limit) => format!("for {} s", limit.as_secs_f64()),
        None => format!("{} requests", plan.total),
    };
    let warmed = match plan.warm_up.as_secs_f64() {
        0.0 => String::new(),
        seconds => format!(", after {seconds} s of warm-up at the same rate"),
    };
    format!("One run, {limit}{warmed}: {}.", how(load))
}

/// Describes the pace, and whether requests wait for replies.
pub fn pace(load: &Load) -> String {
    match load.pace {
        Pace::Unlimited => "no rate limit, closed loop".into(),
        Pace::AtMost(rate) => format!("at most {rate} per second, closed loop"),
        Pace::Open(rate) => format!("{rate} per second, open loop"),
    }
}

/// Describes the pace and the composition of a mix.
fn how(load: &Load) -> String {
    let pace = pace(load);
    match &load.operation {
        Operation::Ycsb(YcsbLoad { mix, distribution, sizes, records, serializable, .. }) => {
            let kind = if *serializable { "serializable" } else { "linearizable" };
            format!("{pace}; {mix} of {records} records of {sizes} B, {distribution}, {kind} reads")
        }
        Operation::TxnMixed { ranges_per_put, .. } => format!("{pace}; {ranges_per_put} ranges per put"),
        Operation::Kubernetes(KubernetesLoad { nodes, pods, churn, api_servers, .. }) => {
            format!(
                "{pace}; {nodes} nodes, {pods} pods, {churn} replaced per second, {api_servers} API servers"
            )
        }
        _ => pace,
    }
}

/// Runs to completion with the requested display and exporter.
async fn shown(
    global: &Global,
    run: ActiveRun,
    background: impl Future<Output = String>,
) -> Result<Measurement, String> {
    let exporter = match &global.metrics_listen {
        None => None,
        Some(address) => {
            let exporter = Exporter::listen(address).await;
            Some(exporter.map_err(|error| format!("--metrics-listen={address}: {error}"))?)
        }
    };
    if let Some(exporter) = &exporter {
        note(&format!("metrics at http://{}/metrics", exporter.address()));
    }
    let mut bar = ProgressView::new("", WithoutTerminal::Lines);
    let mut show = |run: &ActiveRun| {
        bar.show(run);
        exporter.iter().for_each(|exporter| exporter.show(run));
    };
    let measurement = progress::run_shown(run, background, &mut show).await;
    measurement.map_err(|error| chain(&error))
}

/// Includes unnamed members if they expose metrics.
fn probes(global: &Global, cluster: &admin::ClusterView) -> Vec<Probe> {
    if global.server_pids.is_empty() {
        return cluster.endpoints().into_iter().map(Probe::Metrics).collect();
    }
    let process = |&pid: &u32| Probe::Process { name: format!("process {pid}"), pid };
    global.server_pids.iter().map(process).collect()
}

fn show(global: &Global, sent: &Run, shown: &ResultDocument<'_>, report: &Report) -> Result<(), String> {
    let json = global.json.as_ref().map_or(Ok(()), |path| {
        let endpoints = sent.endpoints.iter().map(ToString::to_string).collect();
        let (workload, conns, clients) = (sent.name(), sent.conns, sent.clients);
        let document = RunDocument { workload, endpoints, conns, clients, shown, report };
        let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())? + "\n";
        write_file(path, &text)
    });
    if global.is_json_on_stdout() {
        return json;
    }
    let options = text::TextOptions { precise: global.precise, timeline: global.sample };
    let limits: String = shown.slo.iter().map(LimitResult::text).collect();
    let limits = if limits.is_empty() { limits } else { format!("\n{limits}") };
    let text = text::text(shown.summary, shown.server, options) + &text::notices(shown.notices) + &limits;
    first_error([print(&text), json])
}

/// Returns success only if the run was complete, met its limits, and did not exceed the allowed failures.
fn verdict(measurement: &Measurement, errors_max: u64, kept: &[LimitResult]) -> ExitCode {
    match measurement.partial.as_deref() {
        Some(progress::INTERRUPTED) => ExitCode::from(progress::INTERRUPTED_STATUS),
        Some(_) => ExitCode::FAILURE,
        None if measurement.errors() > errors_max => ExitCode::FAILURE,
        None if kept.iter().any(|kept| !kept.met) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}
