//! `suite` and `compare`: turns flags into a plan, measures, and reports.

use super::flags::Global;
use super::flags::measure::{CompareFlags, MeasureFlags, SuiteFlags};
use super::flags::outputs::Outputs;
use super::outputs::{self, check_writable};
use super::progress::WithoutTerminal;
use super::refusal::{ExitReason, of_flags};
use super::terminal::{first_error, note, print, write_file};
use super::{access, loads, progress};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::compare::{
    self, COMPARED_SECONDS_MIN, ComparisonPlan, ComparisonStep, Monitor, Program, Subject, SubjectOrigin,
};
use crate::run::ActiveRun;
use crate::server;
use bench_report::compose;
use bench_report::model::{Report, quoted};
use bench_report::render::{brief, markdown};
use bench_report::suite::{self, SuiteRow};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The default budget of a row at full scale.
const ROW_SECONDS: f64 = 200.0;

/// Runs `suite`.
pub async fn suite(global: &Global, flags: &SuiteFlags) -> Result<ExitCode, ExitReason> {
    let subject = match &flags.program {
        Some(program) => of_flags(program_of(program))?,
        None => {
            Subject { name: flags.name.clone(), origin: SubjectOrigin::Endpoints(global.endpoints.clone()) }
        }
    };
    let title = format!("{}, measured", subject.name);
    measure(global, &flags.measure, vec![subject], title).await
}

/// Runs `compare`.
pub async fn compare(global: &Global, flags: &CompareFlags) -> Result<ExitCode, ExitReason> {
    let a = of_flags(subject("--a", flags.a.as_deref(), &admitted(global, &flags.a_endpoints).await?))?;
    let b = of_flags(subject("--b", flags.b.as_deref(), &admitted(global, &flags.b_endpoints).await?))?;
    if a.name == b.name {
        return Err(ExitReason::CommandLine(format!("invalid --b: --a has the same name {}", a.name)));
    }
    let title = format!("{} and {}, side by side", a.name, b.name);
    measure(global, &flags.measure, vec![a, b], title).await
}

/// Adds access to endpoints. Tokens are valid in one cluster only.
async fn admitted(global: &Global, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>, String> {
    if endpoints.is_empty() {
        Ok(Vec::new())
    } else {
        access::admit(&global.security, endpoints.to_vec()).await
    }
}

fn subject(flag: &str, program: Option<&str>, endpoints: &[Endpoint]) -> Result<Subject, String> {
    match (program, endpoints) {
        (None, []) => Err(format!("missing {flag}=NAME=PATH or {flag}-endpoints=HOST:PORT,…")),
        (Some(program), []) => program_of(program),
        (Some(program), _) if program.contains('=') => {
            Err(format!("{flag}={program} conflicts with {flag}-endpoints: use {flag}=NAME"))
        }
        (name, endpoints) => Ok(Subject {
            name: name.unwrap_or(flag.trim_start_matches('-')).to_owned(),
            origin: SubjectOrigin::Endpoints(endpoints.to_vec()),
        }),
    }
}

fn program_of(text: &str) -> Result<Subject, String> {
    let Program { name, path } = text.parse()?;
    Ok(Subject { name, origin: SubjectOrigin::Program(path) })
}

fn plan(
    global: &Global,
    flags: &MeasureFlags,
    subjects: Vec<Subject>,
    title: String,
) -> Result<ComparisonPlan, String> {
    let mut suites = suite::find(&flags.suites)?;
    for row in &flags.rows {
        if !suites.iter().flat_map(|suite| &suite.rows).any(|known| known.id == *row) {
            return Err(format!("invalid --rows {row}: no such row in these suites"));
        }
    }
    suites.iter_mut().for_each(|suite| suite.keep(&flags.rows));
    suites.retain(|suite| !suite.rows.is_empty());
    let row_seconds = flags.row_seconds.unwrap_or(ROW_SECONDS * flags.scale);
    if row_seconds.is_nan() || row_seconds < 0.0 {
        return Err(format!("invalid --row-seconds {row_seconds}: expected 0 or more"));
    }
    let round_seconds = flags.round_seconds.unwrap_or(COMPARED_SECONDS_MIN * flags.scale.min(1.0));
    if round_seconds.is_nan() || round_seconds < 0.0 {
        return Err(format!("invalid --round-seconds {round_seconds}: expected 0 or more"));
    }
    Ok(ComparisonPlan {
        title: flags.title.clone().unwrap_or(title),
        subjects,
        suites,
        members: flags.members,
        rounds: flags.rounds,
        scale: flags.scale,
        row_seconds: (row_seconds > 0.0).then_some(row_seconds),
        round_seconds,
        data_dir: flags.data_dir.clone(),
        wal_dir: flags.wal_dir.clone(),
        media: flags.media.clone(),
        prefix: flags.prefix.clone().into(),
        // Without its path, servers survive if this process is killed.
        loadgen: std::env::current_exe().ok(),
        threads: loads::threads(global),
    })
}

/// Measures and writes the report; Ctrl-C retains the completed rounds.
async fn measure(
    global: &Global,
    flags: &MeasureFlags,
    subjects: Vec<Subject>,
    title: String,
) -> Result<ExitCode, ExitReason> {
    let plan = of_flags(plan(global, flags, subjects, title))?;
    if flags.list || flags.dry_run {
        return Ok(print(&listed(&plan, flags.dry_run)).map(|()| ExitCode::SUCCESS)?);
    }
    of_flags(plan.check())?;
    outputs::check(&flags.outputs)?;
    global.json.as_deref().map_or(Ok(()), check_writable)?;
    let mut report = of_flags(compare::report(&plan, command_line()))?;
    for (subject, side) in plan.subjects.iter().zip(&mut report.sides) {
        if let SubjectOrigin::Endpoints(endpoints) = &subject.origin {
            let surveyed = admin::survey(endpoints).await;
            let surveyed = surveyed.map_err(|error| format!("{}: {error}", subject.name))?;
            if let Some(first) = surveyed.first() {
                side.version.clone_from(&first.status.version);
                side.program = server::built_with(&first.endpoint).await;
                side.cluster = Some(format!("{:x}", first.cluster_id()));
            }
            note(&written_to(&subject.name, &plan));
        }
    }
    let json = global.json.as_deref().filter(|_| !global.is_json_on_stdout());
    let kept = match json.filter(|_| flags.resume) {
        Some(path) => {
            let found = earlier(path).and_then(|found| match found {
                Some(earlier) => compare::resume(&mut report, earlier),
                None => Ok(Vec::new()),
            });
            of_flags(found.map_err(|error| format!("--resume: {}: {error}", path.display())))?
        }
        None if flags.resume => {
            return Err(ExitReason::CommandLine("--resume requires --json=FILE".into()));
        }
        None => Vec::new(),
    };
    let mut lines = ProgressLines { json: json.map(Path::to_owned), ..ProgressLines::default() };
    let interrupted = tokio::select! {
        () = compare::run(&plan, &mut report, &kept, &mut lines) => false,
        // Dropping the comparison kills the servers that it started.
        () = progress::interrupted() => true,
    };
    if interrupted {
        compare::interrupted(&mut report, progress::INTERRUPTED);
    }
    let report = compare::with_earlier(&report, &kept);
    write(global, &flags.outputs, &report)?;
    if interrupted {
        return Ok(ExitCode::from(progress::INTERRUPTED_STATUS));
    }
    Ok(verdict(global, &report))
}

/// Returns success only if the report is complete and within the allowed number of errors.
pub fn verdict(global: &Global, report: &Report) -> ExitCode {
    let is_bad = report.errors() > global.max_errors.unwrap_or(0) || report.is_incomplete();
    if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn listed(plan: &ComparisonPlan, commands: bool) -> String {
    let mut out = String::new();
    for suite in &plan.suites {
        for row in suite.rows.iter().map(|row| row.scaled(plan.scale, plan.rounds)) {
            let (total, rounds, warm_up_total) =
                (row.load.total, row.method.rounds, row.method.warm_up_total);
            let members = plan.members.unwrap_or(row.method.members);
            let _ = writeln!(out, "{} {}: {}", suite.id, row.id, row.title);
            if commands {
                let _ = writeln!(
                    out,
                    "  {members} members, {rounds} rounds of {total} requests after {warm_up_total}: {}",
                    row.load.command()
                );
            }
        }
    }
    out
}

/// Describes the data that the rows leave in an existing cluster.
fn written_to(name: &str, plan: &ComparisonPlan) -> String {
    let rows =
        plan.suites.iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(plan.scale, plan.rounds));
    let bytes = |row: SuiteRow| {
        let load = row.load;
        load.total * row.method.rounds as u64 * (load.key_bytes + load.value_bytes) as u64
    };
    let mb = rows.filter(|row| row.load.operation.writes()).map(bytes).sum::<u64>() as f64 / 1e6;
    let prefix = String::from_utf8_lossy(&plan.prefix);
    if prefix.is_empty() {
        return format!(
            "{name}: the rows write {mb:.0} MB to this cluster, delete nothing, and may overwrite \
             other keys, because --prefix is empty."
        );
    }
    format!(
        "{name}: the rows write {mb:.0} MB to this cluster, only to keys with the prefix {prefix}, \
         and delete nothing: remove them with etcdctl del --prefix {}. Leases expire after an hour.",
        quoted(&prefix)
    )
}

fn save(path: &Path, report: &Report) -> Result<(), String> {
    let text = serde_json::to_string(report).map_err(|error| error.to_string())? + "\n";
    write_file(path, &text)
}

/// Reads the report in the file of --json, if it exists.
fn earlier(path: &Path) -> Result<Option<Report>, String> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes the report to the files of the flags, or to standard output.
pub fn write(global: &Global, files: &Outputs, report: &Report) -> Result<(), String> {
    let json = global.json.as_deref().map_or(Ok(()), |path| save(path, report));
    let page = compose::page(report);
    let written = first_error([json, outputs::write(files, report, &page)]);
    if global.is_json_on_stdout() {
        return written;
    }
    let names: Vec<_> =
        global.json.iter().chain(files.files()).map(|path| path.display().to_string()).collect();
    // The files contain the full report, so only its summary is printed, unless writing failed.
    let printed = print(&if names.is_empty() || written.is_err() {
        markdown(&page)
    } else {
        brief(&page) + &format!("\nWritten: {}\n", names.join(", "))
    });
    first_error([written, printed])
}

/// Prints text after a report, unless standard output is JSON.
pub fn say(global: &Global, text: &str) -> Result<(), String> {
    if global.is_json_on_stdout() { Ok(()) } else { print(text) }
}

/// Returns the arguments of this process, quoted for a shell and without passwords: reports contain this
/// line.
pub fn command_line() -> String {
    written(arguments())
}

/// Returns the arguments of this process, starting with its name. File names may be invalid UTF-8.
pub fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// Quotes arguments like [`command_line`].
pub fn written(arguments: impl Iterator<Item = String>) -> String {
    let mut hide = Hide::Nothing;
    let words = arguments.map(|word| {
        let (shown, next) = match (hide, word.split_once('=')) {
            (Hide::All, _) => ("…".to_owned(), Hide::Nothing),
            (Hide::AfterColon, _) => (without_password(&word), Hide::Nothing),
            (Hide::Nothing, Some(("--password", _))) => ("--password=…".to_owned(), Hide::Nothing),
            (Hide::Nothing, Some(("--user", user))) => {
                (format!("--user={}", without_password(user)), Hide::Nothing)
            }
            (Hide::Nothing, None) if word == "--password" => (word, Hide::All),
            (Hide::Nothing, None) if word == "--user" => (word, Hide::AfterColon),
            (Hide::Nothing, _) => (word, Hide::Nothing),
        };
        hide = next;
        quoted(&shown)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Part of the next word to hide.
#[derive(Clone, Copy)]
enum Hide {
    Nothing,
    All,
    /// `name:password`
    AfterColon,
}

fn without_password(user: &str) -> String {
    user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:…"))
}

/// Prints a line to standard error for each row and each problem; on a terminal, a bar for each run.
#[derive(Default)]
pub struct ProgressLines {
    row: usize,
    /// View of the current run.
    view: Option<progress::ProgressView>,
    label: String,
    /// File for the report, updated after each row.
    json: Option<PathBuf>,
}

impl Monitor for ProgressLines {
    fn step(&mut self, step: &ComparisonStep<'_>) {
        self.view = None;
        if step.row_number != self.row {
            self.row = step.row_number;
            self.remark(&format!("{} of {}: {} {}", step.row_number, step.rows, step.suite, step.row));
        }
        self.label = match step.round {
            0 => format!("{} warm-up", step.side),
            round => format!("{} {round}/{}", step.side, step.rounds),
        };
    }

    fn progress(&mut self, run: &ActiveRun) {
        let view = self
            .view
            .get_or_insert_with(|| progress::ProgressView::new(&self.label, WithoutTerminal::Silence));
        view.show(run);
        if run.progress().finished {
            self.view = None;
        }
    }

    fn remark(&mut self, text: &str) {
        self.view = None;
        note(text);
    }

    fn row_measured(&mut self, report: &Report) {
        if let Some(Err(error)) = self.json.as_deref().map(|path| save(path, report)) {
            self.remark(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_a_program_or_endpoints_with_a_name() {
        let endpoints: Vec<Endpoint> = vec!["h:1".parse().unwrap()];
        assert!(matches!(subject("--a", Some("x=/p"), &[]).unwrap().origin, SubjectOrigin::Program(_)));
        assert_eq!(subject("--a", Some("etcd"), &endpoints).unwrap().name, "etcd");
        assert_eq!(subject("--b", None, &endpoints).unwrap().name, "b");
        for (program, endpoints) in [(None, &[][..]), (Some("x=/p"), &endpoints), (Some("x"), &[])] {
            assert!(subject("--a", program, endpoints).is_err(), "{program:?}");
        }
    }

    #[test]
    fn passwords_are_hidden() {
        for (line, shown) in [
            ("loadgen --user root:secret suite", "loadgen --user root:… suite"),
            ("loadgen --user=root:secret", "loadgen --user=root:…"),
            ("loadgen --user=root --password=secret", "loadgen --user=root --password=…"),
            ("loadgen --password secret --user root", "loadgen --password … --user root"),
        ] {
            assert_eq!(written(line.split(' ').map(str::to_owned)), shown);
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        for (word, written) in [
            ("--a=x=/p/q", "--a=x=/p/q"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("\u{1b}[2J", "'\u{fffd}[2J'"),
        ] {
            assert_eq!(quoted(word), written);
        }
    }
}
