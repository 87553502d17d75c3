//! `kv-server import` and `kv-server restore`: one command with two names. It creates a data directory from
//! a snapshot, an archive or a running cluster; each source has separate flags.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Command;

use crate::{archive, import, live_import};

const SNAPSHOT: &str = "a snapshot (--from FILE)";
const ARCHIVE: &str = "an archive (--from DIRECTORY or s3://BUCKET/PREFIX)";
const CLUSTER: &str = "a running cluster (--live ENDPOINTS)";

const MORE: &str = "\
Examples:
  kv-server import --from snapshot.db --data-dir d     a file of `etcdctl snapshot save`
  kv-server restore --from s3://bucket/kv --time 2026-01-02T15:04:05Z --data-dir d
  kv-server import --live 10.0.0.1:2379 --data-dir d   Ctrl-C catches up and ends; run again, it continues

Exit status: 0 if the directory was made, 1 if not, 2 for a command line that makes no sense.";

/// Source of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Snapshot,
    Archive,
    Cluster,
}

impl Source {
    const ALL: [Source; 3] = [Source::Snapshot, Source::Archive, Source::Cluster];

    fn of(arguments: &[OsString]) -> Source {
        if live_import::is_wanted(arguments) {
            Source::Cluster
        } else if archive::is_wanted(arguments) {
            Source::Archive
        } else {
            Source::Snapshot
        }
    }

    fn name(self) -> &'static str {
        match self {
            Source::Snapshot => SNAPSHOT,
            Source::Archive => ARCHIVE,
            Source::Cluster => CLUSTER,
        }
    }

    fn described(self) -> Command {
        match self {
            Source::Snapshot => import::described(),
            Source::Archive => archive::described_restore(),
            Source::Cluster => live_import::described(),
        }
    }

    fn takes(self, flag: &str) -> bool {
        self.described().get_arguments().any(|argument| argument.get_long() == Some(flag))
    }
}

/// The command with the flags of all sources, for help, completion scripts and manual pages.
pub fn described(name: &'static str) -> Command {
    let about = "Makes a data directory from a snapshot of etcdctl, an archive or a running cluster.";
    let usage = format!("kv-server {name} --from FILE|DIRECTORY|s3://BUCKET/PREFIX --data-dir DIR [FLAGS]");
    let usage = format!("{usage}\n       kv-server {name} --live ENDPOINTS --data-dir DIR [FLAGS]");
    let mut all = Command::new(name).about(about).override_usage(usage).after_help(MORE);
    for source in Source::ALL {
        for argument in source.described().get_arguments() {
            let flag = argument.get_long().unwrap_or_default();
            if all.get_arguments().any(|known| known.get_id() == argument.get_id()) {
                continue;
            }
            let argument = argument.clone().required(false);
            let is_shared = Source::ALL.into_iter().filter(|source| source.takes(flag)).count() > 1;
            all = all.arg(match is_shared {
                true => argument,
                false => argument.help_heading(format!("Flags for {}", source.name())),
            });
        }
    }
    all
}

/// The whole of the command; `name` is one of [`COMMANDS`](import::COMMANDS), and `arguments` are those after
/// it.
pub fn run(name: &'static str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        let _unwritten = described(name).print_long_help();
        return ExitCode::SUCCESS;
    }
    let source = Source::of(&arguments);
    if let Some(reason) = flag_of_another(source, &arguments) {
        let _unwritten = writeln!(std::io::stderr(), "kv-server {name}: {reason}");
        return ExitCode::from(2);
    }
    let arguments = arguments.into_iter();
    match source {
        Source::Snapshot => import::run(name, arguments),
        Source::Archive => archive::run_restore(name, arguments),
        Source::Cluster => live_import::run(name, arguments),
    }
}

/// Returns why a flag does not fit the source, if one is of another source. clap would suggest a flag of
/// another meaning: `--bump-revision` for `--revision`.
fn flag_of_another(source: Source, arguments: &[OsString]) -> Option<String> {
    let flags = arguments.iter().filter_map(|argument| argument.to_str()?.strip_prefix("--"));
    let mut names = flags.map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name));
    names.find_map(|flag| {
        let other =
            Source::ALL.into_iter().find(|other| other.takes(flag)).filter(|_| !source.takes(flag))?;
        Some(format!("--{flag} goes with {}, not with {}", other.name(), source.name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_has_the_flags_of_all_sources() {
        for name in import::COMMANDS {
            let help = described(name).render_long_help().to_string();
            for source in Source::ALL {
                for flag in source.described().get_arguments().filter_map(clap::Arg::get_long) {
                    assert!(help.contains(&format!("--{flag}")), "{name}: {flag}: {help}");
                }
            }
        }
    }

    #[test]
    fn a_flag_of_another_source_is_named_as_such() {
        for (line, wanted) in [
            ("--from snap.db --revision 5", "--revision goes with an archive"),
            ("--from snap.db --time=2026-01-02T15:04:05Z", "--time goes with an archive"),
            (
                "--from / --bump-revision 5",
                "--bump-revision goes with a snapshot (--from FILE), not with an archive",
            ),
            ("--from snap.db --until-caught-up", "--until-caught-up goes with a running cluster"),
            ("--live h:1 --skip-hash-check", "--skip-hash-check goes with a snapshot"),
            ("--live h:1 --from snap.db", "--from goes with a snapshot"),
            ("--from snap.db --name a --data-dir d", ""),
            ("--from snap.db --bogus", ""),
        ] {
            let line = words(line);
            let reason = flag_of_another(Source::of(&line), &line).unwrap_or_default();
            assert!(
                reason.starts_with(wanted) && reason.is_empty() == wanted.is_empty(),
                "{line:?}: {reason}"
            );
        }
    }
}
