//! Command line of `restore` from an archive.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{CommandFactory, Parser};

use super::place::{ArchivePlace, PlaceError, is_bucket};
use super::restore::{RestoreError, RestoreResult, RestoreTarget, restore};
use crate::import::{MemberFlags, MemberFlagsError};
use process::command_line::run as run_command;

/// Arguments of a restore from an archive.
#[derive(Debug, Parser)]
#[command(
    name = "kvctl restore",
    about = "Creates the data directory of a new member from an archive of `kvctl archive`, at one revision."
)]
struct RestoreArguments {
    /// The directory of the archive, or s3://BUCKET/PREFIX.
    #[arg(long)]
    from: String,
    #[command(flatten)]
    member: MemberFlags,
    /// Revision to restore [default: the latest, if the cluster has one member].
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    revision: Option<i64>,
    /// Time to restore, such as 2026-01-02T15:04:05Z: the latest revision that the archiver had received by
    /// then. With --revision: the revision found for this time, with the users of this time.
    #[arg(long, value_parser = parse_time)]
    time: Option<SystemTime>,
}

/// Parses a time. A time without a zone is rejected as ambiguous.
fn parse_time(text: &str) -> Result<SystemTime, &'static str> {
    humantime::parse_rfc3339(text).map_err(|_| "expected a time in UTC, such as 2026-01-02T15:04:05Z")
}

#[derive(Debug, thiserror::Error)]
enum RestoreCommandError {
    #[error(transparent)]
    Flags(#[from] MemberFlagsError),
    #[error("set --revision or --time: all members of --initial-cluster must be restored to the same state")]
    Several,
    #[error("start the client of the bucket")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

/// Reports whether `--from` names a directory or a bucket, that is, an archive.
pub fn is_wanted(arguments: &[OsString]) -> bool {
    let mut arguments = arguments.iter().filter_map(|argument| argument.to_str());
    let from = arguments.find_map(|argument| match argument.strip_prefix("--from") {
        Some("") => Some(None),
        Some(rest) => rest.strip_prefix('=').map(Some),
        None => None,
    });
    let path = from.and_then(|given| given.or_else(|| arguments.next()));
    path.is_some_and(|path| is_bucket(path) || Path::new(path).is_dir())
}

/// Returns the clap command, for completion scripts and manual pages.
pub fn described() -> clap::Command {
    RestoreArguments::command()
}

/// Runs `command`; `arguments` follow its name. Exit status: 0 if the directory was created, 1 if not, 2 for
/// an invalid command line.
pub fn run(command: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run_command(command, arguments, |arguments: &RestoreArguments| {
        // A later run may find a later revision for the same time, because of delayed writes to the archive.
        let members = match (arguments.revision, arguments.time) {
            (None, Some(time)) if !is_alone(arguments) => Some(humantime::format_rfc3339_millis(time)),
            _ => None,
        };
        let RestoreResult { revision, base, leases, without_ttl } = try_run(arguments)?;
        let _unwritten = writeln!(
            io::stdout(),
            "restored into {}: revision {revision}, from the base at {base}, with {leases} leases, of which \
             {without_ttl} have no TTL in the archive",
            arguments.member.data_dir
        );
        if let Some(time) = members {
            let _unwritten =
                writeln!(io::stdout(), "restore the other members with --revision {revision} --time {time}");
        }
        Ok::<(), RestoreCommandError>(())
    })
}

fn try_run(arguments: &RestoreArguments) -> Result<RestoreResult, RestoreCommandError> {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let settings = arguments.member.settings()?;
    let milliseconds = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    };
    let wanted = match (arguments.revision, arguments.time) {
        (Some(revision), Some(time)) => RestoreTarget::RevisionAndTime(revision, milliseconds(time)),
        (Some(revision), None) => RestoreTarget::Revision(revision),
        (None, Some(time)) => RestoreTarget::Time(milliseconds(time)),
        (None, None) if is_alone(arguments) => RestoreTarget::Newest,
        (None, None) => return Err(RestoreCommandError::Several),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(RestoreCommandError::Runtime)?;
    Ok(restore(&ArchivePlace::at(&arguments.from, runtime.handle())?, wanted, &settings)?)
}

fn is_alone(arguments: &RestoreArguments) -> bool {
    arguments.member.initial_members().map(|(name, _)| name).collect::<HashSet<_>>().len() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_zone() {
        parse_time("2026-01-02T15:04:05Z").unwrap();
        for time in ["2026-01-02T15:04:05", "2026-01-02T15:04:05+01:00", "2026-01-02", "now"] {
            assert!(parse_time(time).unwrap_err().contains("such as 2026-01-02T15:04:05Z"), "{time}");
        }
    }

    #[test]
    fn a_cluster_of_one_needs_no_revision() {
        for (members, wanted) in [
            ("", true),
            ("a=http://h:1,", true),
            ("a=http://h:1,,a=http://h:2", true),
            ("a=http://h:1,b=http://h:2", false),
        ] {
            let cluster = format!("--initial-cluster={members}");
            let line = ["restore", "--from=archive", "--data-dir=d", &cluster];
            assert_eq!(is_alone(&RestoreArguments::try_parse_from(line).unwrap()), wanted, "{members}");
        }
        let nowhere = RestoreArguments::try_parse_from(["restore", "--from=archive", "--data-dir="]);
        nowhere.unwrap_err(); // It would be ./default.kv-server.
    }

    #[test]
    fn a_directory_is_an_archive() {
        for (line, wanted) in [
            ("--from / --data-dir d", true),
            ("--data-dir d --from=/", true),
            ("--from s3://bucket/prefix", true),
            ("--from s3:/bucket/prefix", true),
            ("--from /no/such/file", false),
            ("--from", false),
            ("--fromage /", false),
            ("--data-dir /", false),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(is_wanted(&arguments), wanted, "{line}");
        }
    }
}
