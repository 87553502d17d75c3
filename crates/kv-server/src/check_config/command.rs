//! The command line of `check-config`.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{Arg, Command};

use super::report::ConfigReport;
use super::risks;
use config::flags::{self, Effective, FlagError, Notice, ParsedFlags};
use config::{Flags, Settings, log_settings, read_file};
use data_dir::{Directory, bootstrap};
use process::log::causes;
use transport::tls;

/// The first argument that leads here.
pub const COMMAND: &str = "check-config";

const HELP: &str = "Says what a set of flags will do, what has no effect, and what is risky about it.\n\n\
    Usage: kv-server check-config [-w json] [FLAGS OF KV-SERVER]\n\n\
    Reads the same flags, environment and --config-file as a start. Changes nothing, binds nothing.\n\
    Exit status: 0 if a member would start with them, 1 if not.\n";

/// The command line, for completion scripts and manual pages.
pub fn described() -> Command {
    let format = Arg::new("write-out").short('w').long("write-out").value_parser(["json"]);
    let flags = Arg::new("flags").num_args(0..).value_name("FLAGS OF KV-SERVER");
    Command::new(COMMAND)
        .about("Says what a set of flags will do, what has no effect, and what is risky about it.")
        .after_long_help(
            "Reads the same flags, environment and --config-file as a start. Changes nothing, binds \
             nothing.\n\nExit status: 0 if a member would start with them, 1 if not.",
        )
        .arg(format.help("Print JSON"))
        .arg(flags.help("The flags that a member would be started with"))
}

/// The whole of the command; `arguments` are those after its name.
pub fn run(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let (is_json, arguments) = output_of(arguments.collect());
    let environment: Vec<(OsString, OsString)> = environment.collect();
    let report = match checked(&arguments, &environment) {
        Ok(Some(report)) => report,
        Ok(None) => {
            say(HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => ConfigReport { error: Some(error), ..ConfigReport::default() },
    };
    say(&if is_json { report.json() } else { report.text() });
    if report.error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(text: &str) {
    let _unwritten = std::io::stdout().write_all(text.as_bytes());
}

/// Whether JSON is wanted, and the arguments without that wish.
fn output_of(arguments: Vec<OsString>) -> (bool, Vec<OsString>) {
    let mut is_json = false;
    let mut rest = Vec::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let is_output = argument == "-w" || argument == "--write-out";
        if is_output && arguments.next_if(|format| format == "json").is_some() {
            is_json = true;
        } else {
            rest.push(argument);
        }
    }
    (is_json, rest)
}

/// Returns the checked settings, or None if help was requested. The error is the reason a member would not
/// start.
fn checked(
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<Option<ConfigReport>, String> {
    let refused = |error: FlagError| causes(&error);
    let parsed = flags::parse(arguments.to_vec(), environment.to_vec()).map_err(refused)?;
    let ParsedFlags::Flags(given, notices) = parsed else { return Ok(None) };
    let file = match given.config_file.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => Some(read_file(path).map_err(refused)?),
        None => None,
    };
    let (flags, notices, ignored) = match &file {
        Some(text) => {
            let (flags, notices) = flags::parse_file(text).map_err(refused)?;
            (flags, notices, ignored(&given, environment))
        }
        None => (*given, notices, Vec::new()),
    };
    let settings = flags::effective(arguments.to_vec(), environment.to_vec(), file.as_deref());
    let mut report = report_of(settings.map_err(refused)?, &notices);
    report.ignored = ignored;
    match judged(&flags) {
        Ok(risks) => report.risks.extend(risks),
        Err(error) => report.error = Some(error),
    }
    Ok(Some(report))
}

/// Flags and variables that do not count because there is a configuration file.
fn ignored(given: &Flags, environment: &[(OsString, OsString)]) -> Vec<String> {
    let flags = given.given.iter().filter(|name| *name != "config-file").map(|name| format!("--{name}"));
    let named = environment.iter().filter(|(_, value)| !value.is_empty());
    let names = named.filter_map(|(name, _)| name.to_str());
    let variables = names.filter(|name| flags::is_variable(name) && *name != "ETCD_CONFIG_FILE");
    flags.chain(variables.map(str::to_owned)).collect()
}

fn report_of(settings: Vec<Effective>, notices: &[Notice]) -> ConfigReport {
    let mut report = ConfigReport { settings, ..ConfigReport::default() };
    for notice in notices {
        match notice {
            Notice::NoEffect { name, reason } => {
                report.without_effect.push((name.clone(), (*reason).to_owned()));
            }
            Notice::IgnoredFlag { name } => {
                report.without_effect.push((name.clone(), "a flag that etcd ignores as well".to_owned()));
            }
            Notice::UnknownVariable { name, advice } | Notice::UnknownKey { name, advice } => {
                let advice = advice.iter().map(|advice| format!("; {advice}")).collect::<String>();
                report.risks.push(format!("{name} is no setting of kv-server and is ignored{advice}"));
            }
            Notice::UsedVariable { .. } | Notice::UsedFile { .. } => {}
        }
    }
    report
}

/// Returns the risks of a configuration. The error is the reason a member would not start.
fn judged(flags: &Flags) -> Result<Vec<String>, String> {
    if flags.local_cluster.is_some() {
        return Err("--local-cluster chooses its settings when it starts".to_owned());
    }
    let log = log_settings(flags).map_err(|error| causes(&error))?;
    let settings = Settings::from_flags(flags).map_err(|error| causes(&error))?;
    Directory::check(&settings.data_dir, settings.wal_dir.as_deref()).map_err(|error| causes(&error))?;
    bootstrap::check(&settings).map_err(|error| causes(&error))?;
    let ends = tls::check_files(&settings).map_err(|error| causes(&error))?;
    auth::load_tokens(&settings.auth).map_err(|error| causes(&error))?;
    Ok(risks::of(&settings, &log, &ends))
}
