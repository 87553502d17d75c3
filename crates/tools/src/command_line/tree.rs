//! All commands as one tree, as clap describes them, and the arguments of `completion` and `man`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::Shell;

use crate::{archive, check_config, import, inspect, live_import, operator, top};
use config::Flags;

const SERVER: &str = "\
Without a command, a member is started. Its flags are those of etcd: one dash or two, a value after a space or after =, \
the last one counts if a flag is given twice. A flag --NAME-OF-FLAG is also read from the environment variable \
ETCD_NAME_OF_FLAG, and it is an error to give both. With --config-file, nothing else is read. Flags of etcd that have \
no effect are accepted and logged.

A member ends on SIGTERM or SIGINT: it hands leadership over first. It ends by itself when its disk fails.

Exit status: 0 after a signal or --version, 1 if the member could not start or go on, 2 for a command line that makes no \
sense.";

/// One command with two ways to call it: the flags of both.
fn either(name: &'static str, about: &'static str, ways: [Command; 2]) -> Command {
    let mut both = Command::new(name).about(about);
    for argument in ways.iter().flat_map(Command::get_arguments) {
        if !both.get_arguments().any(|known| known.get_id() == argument.get_id()) {
            both = both.arg(argument.clone().required(false));
        }
    }
    both
}

/// The program with all its commands.
pub fn tree() -> Command {
    let help = Arg::new("help").long("help").short('h').help("Print this help and exit").num_args(0);
    let import = either(
        "import",
        "Makes a data directory from a snapshot of etcdctl (--from) or a running cluster (--live).",
        [import::described(), live_import::described()],
    );
    let restore = either(
        "restore",
        "Makes a data directory from an archive or a snapshot of etcdctl (--from).",
        [archive::described_restore(), import::described()],
    );
    Flags::command()
        .arg(help)
        .disable_help_subcommand(true)
        .after_long_help(SERVER)
        .subcommand(top::described().name(top::COMMAND))
        .subcommand(operator::described().name(operator::COMMAND).disable_help_subcommand(true))
        .subcommand(check_config::described())
        .subcommand(inspect::described().name(inspect::COMMAND))
        .subcommand(archive::described().name(archive::COMMAND))
        .subcommand(import)
        .subcommand(restore)
        .subcommand(CompletionArguments::command().name(COMPLETION))
        .subcommand(ManArguments::command().name(MAN))
}

/// The commands, one a line, to be printed after the flags of the server.
pub fn list() -> String {
    let mut text = String::from("\nCommands, each with its own --help:\n");
    for command in tree().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let first =
            |text: &str, end| text.split_once(end).map_or(text.to_owned(), |(first, _)| first.to_owned());
        let about = first(&first(&about, ": "), ". ");
        let _always_written = writeln!(text, "  {:<14}{}", command.get_name(), about.trim_end_matches('.'));
    }
    text
}

/// The first arguments that lead here.
pub const COMPLETION: &str = "completion";
pub const MAN: &str = "man";

const COMPLETION_MORE: &str = "\
Examples:
  bash, for now or for good:
    source <(kv-server completion bash)
    kv-server completion bash > ~/.local/share/bash-completion/completions/kv-server
  zsh, in a directory that $fpath names:
    kv-server completion zsh > ~/.zfunc/_kv-server
  fish:
    kv-server completion fish > ~/.config/fish/completions/kv-server.fish";

const MAN_MORE: &str = "\
Examples:
  kv-server man | man -l -
  kv-server man member replace | man -l -
  kv-server man --output /usr/local/share/man/man1";

#[derive(Debug, Parser)]
#[command(name = "kv-server completion", about = "Prints a completion script for a shell.")]
#[command(after_long_help = COMPLETION_MORE)]
pub struct CompletionArguments {
    pub shell: Shell,
}

#[derive(Debug, Parser)]
#[command(name = "kv-server man", about = "Prints a page of the manual in roff, or writes all of them.")]
#[command(after_long_help = MAN_MORE)]
pub struct ManArguments {
    /// The command that the page is about [default: the server itself].
    #[arg(conflicts_with = "output")]
    pub command: Vec<String>,
    /// Write the pages of all commands into this directory.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_one_that_clap_accepts() {
        tree().debug_assert();
    }

    #[test]
    fn the_list_has_every_command_in_one_line() {
        let list = list();
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let names: Vec<String> = list.lines().skip(2).filter_map(first).collect();
        let wanted = "top member check-config inspect archive import restore completion man";
        assert_eq!(names.join(" "), wanted);
        assert!(list.lines().all(|line| line.len() <= 125), "{list}");
    }
}
