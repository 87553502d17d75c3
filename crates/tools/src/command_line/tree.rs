//! All commands as one tree, as clap describes them, and the arguments of `completion` and `man`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::Shell;

use super::directories;
use crate::{archive, check_config, import, inspect, operator, top};
use config::flags;

const SERVER: &str = "\
Without a command, a member is started. Its flags are those of etcd: one dash or two, a value after a space or after =, \
the last one counts if a flag is given twice. A flag --NAME-OF-FLAG is also read from the environment variable \
ETCD_NAME_OF_FLAG, and it is an error to give both. With --config-file, nothing else is read. Flags of etcd that have \
no effect are accepted and logged.

A member ends on SIGTERM or SIGINT: it hands leadership over first. It ends by itself when its disk fails.

Exit status: 0 after a signal or --version, 1 if the member could not start or go on, 2 for a command line that makes no \
sense.";

/// The program with all its commands.
pub fn tree() -> Command {
    let help = Arg::new("help").long("help").short('h').help("Print this help and exit").num_args(0);
    flags::command()
        .arg(help)
        .disable_help_subcommand(true)
        .after_long_help(SERVER)
        .subcommand(top::described().name(top::COMMAND))
        .subcommand(operator::described().name(operator::COMMAND).disable_help_subcommand(true))
        .subcommand(check_config::described())
        .subcommand(inspect::described().name(inspect::COMMAND))
        .subcommand(archive::described().name(archive::COMMAND))
        .subcommands(import::COMMANDS.map(directories::described))
        .subcommand(CompletionArguments::command().name(COMPLETION))
        .subcommand(ManArguments::command().name(MAN))
}

/// The flags that most starts need, in this order.
const FIRST: [&str; 9] = [
    "name",
    "data-dir",
    "listen-client-urls",
    "advertise-client-urls",
    "listen-peer-urls",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "config-file",
];

const EXAMPLES: &str = "\
Examples:
  kv-server --local-cluster=3           in three terminals: three members on this machine
  kv-server --name=a --data-dir=/var/lib/kv-server/a \\
    --listen-client-urls=http://10.0.0.1:2379 --advertise-client-urls=http://10.0.0.1:2379 \\
    --listen-peer-urls=http://10.0.0.1:2380 --initial-advertise-peer-urls=http://10.0.0.1:2380 \\
    --initial-cluster=a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380
  kv-server check-config --config-file=/etc/kv-server/member.yml

A flag --NAME-OF-FLAG is also read from the environment variable ETCD_NAME_OF_FLAG.";

const ALL: &str = "All flags, by group: kv-server --help-all. A command has its own --help.";

/// Columns of the help on a wide terminal.
const WIDTH: usize = 110;

/// Returns the output of `--help`, or of `--help-all`.
pub fn help(is_all: bool) -> String {
    helpful(is_all).render_help().to_string()
}

fn helpful(is_all: bool) -> Command {
    let first = |text: String, end| text.split_once(end).map(|(first, _)| first.to_owned()).unwrap_or(text);
    let tree = tree().mut_args(|flag| {
        let at = FIRST.iter().position(|name| flag.get_long() == Some(name));
        match at {
            Some(at) if !is_all => flag.help_heading("Flags that most starts need").display_order(at),
            _ if is_all => flag,
            _ => flag.hide(true),
        }
    });
    let tree = tree.mut_subcommands(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let about = first(first(about, ": "), ". ");
        command.about(about.trim_end_matches('.').to_owned())
    });
    let more = if is_all { EXAMPLES.to_owned() } else { format!("{EXAMPLES}\n{ALL}") };
    let usage = "kv-server [FLAGS]\n       kv-server COMMAND ...";
    tree.override_usage(usage).after_help(more).after_long_help("").max_term_width(WIDTH)
}

/// The first arguments that lead here.
pub const COMPLETION: &str = "completion";
pub const MAN: &str = "man";

/// Shells with tested and packaged scripts.
pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

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
    #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
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

    /// The texts are kept in files; `UPDATE_SCRIPTS=1` writes them.
    #[test]
    fn help_is_as_it_is_kept() {
        for (is_all, name, lines_max) in [(false, "help.txt", 50), (true, "help-all.txt", usize::MAX)] {
            let path = format!("{}/src/command_line/{name}", env!("CARGO_MANIFEST_DIR"));
            let help = helpful(is_all).term_width(WIDTH).render_help().to_string();
            if std::env::var_os("UPDATE_SCRIPTS").is_some() {
                std::fs::write(&path, &help).unwrap();
            }
            assert_eq!(help, std::fs::read_to_string(&path).unwrap(), "{name}");
            assert!(
                help.lines().count() <= lines_max && help.lines().all(|line| line.len() <= WIDTH),
                "{name}"
            );
            // No flag is missing in the whole list, and none has no group.
            let missing = |flag: &&Arg| !help.contains(&format!("--{}", flag.get_long().unwrap()));
            let tree = tree();
            assert!(!is_all || !tree.get_arguments().any(|flag| missing(&flag)), "{name}");
            assert!(!is_all || !help.contains("\nOptions:\n      --"), "{name}");
        }
    }
}
