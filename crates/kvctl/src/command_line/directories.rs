//! `import` and `restore`: both create a data directory. Each source of one has its own flags, and is a form
//! of its command.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Command;

use crate::{archive, import, live_import};

/// Command that creates a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    Import,
    Restore,
}

/// Source of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Snapshot,
    Archive,
    Cluster,
}

const IMPORT: &str = "\
Examples:
  kvctl import --from snapshot.db --data-dir d      a file of `etcdctl snapshot save`
  kvctl import --live 10.0.0.1:2379 --data-dir d    Ctrl-C catches up, finishes and exits

Exit status: 0 if the directory was created, 1 if not, 2 for an invalid command line.";

const RESTORE: &str = "\
Examples:
  kvctl restore --from snapshot.db --data-dir d
  kvctl restore --from /backup/kv --revision 1200 --data-dir d
  kvctl restore --from s3://bucket/kv --time 2026-01-02T15:04:05Z --data-dir d

A path that is a directory is an archive, any other path is a snapshot. `kvctl archive list` shows the
revisions and times that an archive has.

Exit status: 0 if the directory was created, 1 if not, 2 for an invalid command line.";

impl Directory {
    pub const ALL: [Directory; 2] = [Directory::Import, Directory::Restore];

    pub const fn name(self) -> &'static str {
        match self {
            Directory::Import => "import",
            Directory::Restore => "restore",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Directory::Import => "Creates a data directory from a snapshot of etcdctl or a running cluster.",
            Directory::Restore => "Creates a data directory from an archive or a snapshot of etcdctl.",
        }
    }

    fn sources(self) -> [Source; 2] {
        match self {
            Directory::Import => [Source::Snapshot, Source::Cluster],
            Directory::Restore => [Source::Snapshot, Source::Archive],
        }
    }

    fn more(self) -> &'static str {
        match self {
            Directory::Import => IMPORT,
            Directory::Restore => RESTORE,
        }
    }
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
            Source::Snapshot => "a snapshot (--from FILE)",
            Source::Archive => "an archive (--from DIRECTORY or s3://BUCKET/PREFIX)",
            Source::Cluster => "a running cluster (--live ENDPOINTS)",
        }
    }

    /// Form of the command line.
    fn usage(self) -> &'static str {
        match self {
            Source::Snapshot => "--from FILE --data-dir DIR [FLAGS]",
            Source::Archive => "--from DIRECTORY|s3://BUCKET/PREFIX --data-dir DIR [FLAGS]",
            Source::Cluster => "--live [ENDPOINTS] --data-dir DIR [FLAGS]",
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

/// Returns the command with the flags of all its forms, for help, completion scripts and manual pages.
pub fn described(directory: Directory) -> Command {
    let name = directory.name();
    let usage = directory.sources().map(|source| format!("kvctl {name} {}", source.usage()));
    let mut all = Command::new(name)
        .about(directory.about())
        .override_usage(usage.join("\n       "))
        .after_help(directory.more());
    for source in directory.sources() {
        for argument in source.described().get_arguments() {
            let flag = argument.get_long().unwrap_or_default();
            if all.get_arguments().any(|known| known.get_id() == argument.get_id()) {
                continue;
            }
            let is_shared = directory.sources().into_iter().all(|source| source.takes(flag));
            let argument = match flag {
                "from" if is_shared => argument.clone().value_name("SOURCE").help("See the forms above"),
                _ => argument.clone(),
            };
            let argument = argument.required(false);
            all = all.arg(match is_shared {
                true => argument,
                false => argument.help_heading(format!("Flags for {}", source.name())),
            });
        }
    }
    all
}

/// Runs the command; `arguments` follow its name.
pub fn run(directory: Directory, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let name = directory.name();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        let _unwritten = described(directory).print_long_help();
        return ExitCode::SUCCESS;
    }
    let source = Source::of(&arguments);
    if let Some(reason) = other_form(directory, source, &arguments) {
        let _unwritten = writeln!(std::io::stderr(), "kvctl {name}: {reason}");
        return ExitCode::from(2);
    }
    let arguments = arguments.into_iter();
    let command = format!("kvctl {name}");
    match source {
        Source::Snapshot => import::run(&command, arguments),
        Source::Archive => archive::run_restore(&command, arguments),
        Source::Cluster => live_import::run(&command, arguments),
    }
}

/// Returns the reason why the line is no form of the command: the source belongs to the other command, or a
/// flag to another source. For the latter, clap would suggest a flag of another meaning: `--bump-revision`
/// for `--revision`.
fn other_form(directory: Directory, source: Source, arguments: &[OsString]) -> Option<String> {
    if !directory.sources().contains(&source) {
        let other = Directory::ALL.into_iter().find(|other| other.sources().contains(&source))?;
        return Some(format!("{} is for `kvctl {}`", source.name(), other.name()));
    }
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
    fn help_has_each_form_and_the_flags_of_all() {
        for directory in Directory::ALL {
            let help = described(directory).render_long_help().to_string();
            for source in directory.sources() {
                assert!(help.contains(&format!("kvctl {} {}", directory.name(), source.usage())), "{help}");
                for flag in source.described().get_arguments().filter_map(clap::Arg::get_long) {
                    assert!(help.contains(&format!("--{flag}")), "{}: {flag}: {help}", directory.name());
                }
            }
        }
    }

    #[test]
    fn a_source_or_flag_of_another_form_is_named_as_such() {
        use Directory::{Import, Restore};
        for (directory, line, wanted) in [
            (Restore, "--from snap.db --revision 5", "--revision goes with an archive"),
            (Restore, "--from snap.db --time=2026-01-02T15:04:05Z", "--time goes with an archive"),
            (
                Restore,
                "--from / --bump-revision 5",
                "--bump-revision goes with a snapshot (--from FILE), not with an archive",
            ),
            (Import, "--from snap.db --until-caught-up", "--until-caught-up goes with a running cluster"),
            (Import, "--live h:1 --skip-hash-check", "--skip-hash-check goes with a snapshot"),
            (Import, "--live h:1 --from snap.db", "--from goes with a snapshot"),
            (
                Import,
                "--from / --data-dir d",
                "an archive (--from DIRECTORY or s3://BUCKET/PREFIX) is for `kvctl restore`",
            ),
            (
                Restore,
                "--live h:1 --data-dir d",
                "a running cluster (--live ENDPOINTS) is for `kvctl import`",
            ),
            (Import, "--from snap.db --name a --data-dir d", ""),
            (Import, "--live --data-dir d", ""),
            (Restore, "--from snap.db --bogus", ""),
        ] {
            let line = words(line);
            let reason = other_form(directory, Source::of(&line), &line).unwrap_or_default();
            assert!(
                reason.starts_with(wanted) && reason.is_empty() == wanted.is_empty(),
                "{line:?}: {reason}"
            );
        }
    }
}
