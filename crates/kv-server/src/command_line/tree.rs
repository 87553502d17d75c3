//! Flags and commands of the server, as clap describes them, and its help.

use api::version;
use clap::{Arg, Command};

use crate::check_config;
use config::flags;
use process::command_line::{Program, completion_command, man_command};

const NAME: &str = "kv-server";

const SERVER: &str = "\
Without a command, a member is started. Its flags are etcd's: one dash or two, a value after a space or \
after =, and the last one counts if a flag is given twice. A flag --NAME-OF-FLAG is also read from the \
environment variable ETCD_NAME_OF_FLAG, and it is an error to give both. With --config-file, nothing else is \
read. Flags of etcd that have no effect are accepted and logged.

A member exits on SIGTERM or SIGINT, after it has transferred leadership. It exits by itself if its disk fails.

Exit status: 0 after a signal or --version, 1 if the member could not start or continue, 2 for an invalid \
command line.";

/// Returns the program with its commands, for manual pages.
pub fn program() -> Program {
    Program { name: NAME, version: version::OWN, tree: tree() }
}

/// Returns the program for completion scripts: `check-config` has the flags of the server.
pub fn completed() -> Program {
    let tree = tree();
    let flags: Vec<Arg> = tree.get_arguments().filter(|flag| flag.get_id() != "help").cloned().collect();
    let tree = tree.mut_subcommand(check_config::COMMAND, |command| command.args(flags));
    Program { tree, ..program() }
}

fn tree() -> Command {
    let help = Arg::new("help").long("help").short('h').help("Print this help and exit").num_args(0);
    flags::command()
        .arg(help)
        .disable_help_subcommand(true)
        .after_long_help(SERVER)
        .subcommand(check_config::described())
        .subcommand(completion_command(NAME))
        .subcommand(man_command(NAME))
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

const ALL: &str = "\
All flags, by group: kv-server --help-all. A command has its own --help.
Backups, imports, changes of the members, what is in a data directory: kvctl --help.";

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_definitions() {
        tree().debug_assert();
        completed().tree.debug_assert();
    }

    #[test]
    fn check_config_completes_the_flags_of_the_server() {
        let tree = completed().tree;
        let command = tree.find_subcommand(check_config::COMMAND).unwrap();
        assert!(command.get_arguments().any(|flag| flag.get_long() == Some("quota-backend-bytes")));
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
