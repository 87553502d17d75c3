//! Runs and reports a single load at a single rate.

use super::agents::controller;
use super::flags::Global;
use super::flags::limits::{self, Limit, LimitResult};
use super::flags::outputs::Outputs;
use super::live::exporter::Exporter;
use super::live::screen::Screen;
use super::outputs;
use super::plans::row::{self, of_agents, spec, title};
use super::progress::{ProgressView, WithoutTerminal};
use super::refusal::ExitReason;
use super::terminal::{first_error, note, print, write_file};
use super::{measure, progress};
use crate::agents;
use crate::client::admin;
use crate::compare::steps::rows_of_run;
use crate::compare::{self, Subject, SubjectOrigin};
use crate::output::hdr;
use crate::output::summary::Summary;
use crate::output::text::{self, chain};
use crate::run::results::{KindResults, Measurement};
use crate::run::schedule::RunPace;
use crate::run::{ActiveRun, LoadPlan};
use crate::server::{self, ForeignCpu, Probe, ServerFigures};
use bench_report::model::{Notice, Report, SINGLE_RUN, SuiteResult};
use bench_report::{compose, number};
use serde::Serialize;
use std::io::{IsTerminal, stderr};
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

/// Runs a plan at one rate and reports it.
pub async fn run(
    global: &Global,
    plan: LoadPlan,
    cluster: &admin::ClusterView,
    wants: Wants<'_>,
    background: impl Future<Output = String>,
) -> Result<ExitCode, ExitReason> {
    let probes = probes(global, cluster);
    outputs::check(&wants.outputs)?;
    wants.hdr.as_deref().map_or(Ok(()), outputs::check_writable)?;
    let mut title = title(&plan);
    let mut report = described(&plan, cluster, &title)?;
    let mut sent = plan.clone();
    let prepared = if global.agents.is_empty() { Some(progress::prepared(plan).await?) } else { None };
    let earlier = server::read(&probes).await;
    let mut foreign = ForeignCpu::begin();
    let measurement = match prepared {
        Some(prepared) => shown(global, &title, prepared.begin(), background).await?,
        None => controller::run(&global.agents, measure::arguments().skip(1).collect()).await?,
    };
    if measurement.machines.is_empty() {
        // Covers this machine only: agents run elsewhere.
        foreign.end();
    } else {
        sent = of_agents(&sent, &measurement);
        let agents = number::counted(measurement.machines.len(), "agent");
        title = format!("{}, by {agents}", row::title(&sent));
        report.machine = agents::machine(&measurement.machines);
        (report.setup.threads, report.title) = (measurement.threads, title.clone());
        report.suites[0].title.clone_from(&title);
        let each = if matches!(sent.pace, RunPace::Stages(_)) { ", each of which sent this" } else { "" };
        report.suites[0].about = format!("By {agents}{each}. {}", about(&sent));
    }
    let spec = spec(&sent);
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
    let rows = rows_of_run(&measurement, figures.clone(), foreign, &spec, &title);
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
    Ok(verdict(&measurement, errors_max, &kept))
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
fn described(plan: &LoadPlan, cluster: &admin::ClusterView, title: &str) -> Result<Report, String> {
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
        about: about(plan),
        source_url: None,
        medium: None,
        rows: Vec::new(),
    });
    Ok(report)
}

/// Describes the load in a sentence.
fn about(plan: &LoadPlan) -> String {
    let how = row::how(plan);
    let limit = match plan.seconds_max {
        Some(limit) => format!("for {} s", limit.as_secs_f64()),
        None => format!("{} requests", plan.total),
    };
    let warmed = match plan.warm_up.as_secs_f64() {
        0.0 => String::new(),
        seconds => format!(", after {seconds} s at the same rate"),
    };
    format!("One run, {limit}{warmed}: {how}.")
}

/// Runs to completion with the requested display and exporter.
async fn shown(
    global: &Global,
    title: &str,
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
    let mut screen = (global.live && stderr().is_terminal())
        .then(|| Screen::open(title.to_owned()))
        .transpose()
        .map_err(|error| format!("--live: {error}"))?;
    let mut bar = screen.is_none().then(|| ProgressView::new("", WithoutTerminal::Lines));
    let mut show = |run: &ActiveRun| {
        bar.iter_mut().for_each(|bar| bar.show(run));
        screen.iter_mut().for_each(|screen| screen.show(run));
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

fn show(global: &Global, sent: &LoadPlan, shown: &ResultDocument<'_>, report: &Report) -> Result<(), String> {
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
