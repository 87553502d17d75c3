//! All commands as one tree, as clap describes them, and the help of the program.

use clap::{Arg, ArgAction, Command};

use super::directories::{self, Directory};
use crate::{archive, inspect, operator, top};
use api::version;
use process::command_line::{COMPLETION, MAN, Program, completion_command, man_command};

/// Name of the program.
pub const NAME: &str = "kvctl";

const ABOUT: &str = "Backups, membership changes, metrics and data directories of kv-server and etcd.";

/// Commands by group, as the help lists them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Backup", &[archive::COMMAND, Directory::Import.name(), Directory::Restore.name()]),
    ("Cluster", &[operator::COMMAND, top::COMMAND]),
    ("Offline", &[inspect::COMMAND]),
    ("Shell", &[COMPLETION, MAN]),
];

const MORE: &str = "\
Connections to a cluster: --endpoints is a list of client URLs; --cacert, --cert, --key, --user and
--password are those of etcdctl. Each is also read from etcdctl's variable, such as ETCDCTL_ENDPOINTS.

Examples:
  kvctl archive --endpoints 10.0.0.1:2379 --to s3://bucket/kv --keep 7d
  kvctl restore --from s3://bucket/kv --time 2026-01-02T15:04:05Z --data-dir /var/lib/kv-server
  kvctl import --from snapshot.db --data-dir /var/lib/kv-server
  kvctl member replace OLD NEW=http://10.0.0.4:2380 --dry-run
  kvctl top --metrics-endpoints 10.0.0.1:2381,10.0.0.2:2381,10.0.0.3:2381

A command has its own --help.
";

/// Returns the program, for completion scripts and manual pages.
pub fn program() -> Program {
    Program { name: NAME, version: version::OWN, tree: tree() }
}

fn tree() -> Command {
    let flag = |name: &'static str, short, help| Arg::new(name).long(name).short(short).help(help);
    Command::new(NAME)
        .about(ABOUT)
        .disable_help_subcommand(true)
        .disable_help_flag(true)
        .arg(flag("help", 'h', "Print this help and exit").action(ArgAction::SetTrue))
        .arg(flag("version", 'V', "Print the version and exit").action(ArgAction::SetTrue))
        .after_long_help(MORE)
        .subcommand(archive::described().name(archive::COMMAND))
        .subcommands(Directory::ALL.map(directories::described))
        .subcommand(operator::described().name(operator::COMMAND).disable_help_subcommand(true))
        .subcommand(top::described().name(top::COMMAND))
        .subcommand(inspect::described().name(inspect::COMMAND))
        .subcommand(completion_command(NAME))
        .subcommand(man_command(NAME))
}

/// Returns the output of `--help`.
pub fn help() -> String {
    let tree = tree();
    let mut text = format!("{ABOUT}\n\nUsage: {NAME} COMMAND ...\n");
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for name in names {
            let command = tree.find_subcommand(name).expect("each command is in the tree");
            for (name, about) in forms(name, command) {
                text.push_str(&format!("  {name:<16} {about}\n"));
            }
        }
    }
    format!("{text}\n{MORE}")
}

/// Returns the command, or the commands below it, each with the first sentence about it.
fn forms(name: &str, command: &Command) -> Vec<(String, String)> {
    let about = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let end = about.find([':', ';']).into_iter().chain(about.find(". ")).min().unwrap_or(about.len());
        about[..end].trim_end_matches('.').to_owned()
    };
    let below = command.get_subcommands();
    let mut forms: Vec<(String, String)> =
        below.map(|form| (format!("{name} {}", form.get_name()), about(form))).collect();
    if !command.is_subcommand_required_set() {
        forms.insert(0, (name.to_owned(), about(command)));
    }
    forms
}

/// Returns what to run instead of a word that is no command.
pub fn instead(word: &str) -> String {
    match word {
        "snapshot" => {
            "save with `etcdctl snapshot save FILE`, restore with `kvctl restore --from FILE`".to_owned()
        }
        "check-config" => "run `kv-server check-config`".to_owned(),
        "defrag" | "endpoint" | "alarm" | "get" | "put" | "del" | "watch" | "user" | "role" | "lease" => {
            format!("run `etcdctl {word}`")
        }
        _ => format!("{NAME} --help lists the commands"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        tree().debug_assert();
    }

    #[test]
    fn each_command_is_in_one_group() {
        let mut listed: Vec<&str> = GROUPS.into_iter().flat_map(|(_, names)| names).copied().collect();
        let tree = tree();
        let mut all: Vec<&str> = tree.get_subcommands().map(Command::get_name).collect();
        listed.sort_unstable();
        all.sort_unstable();
        assert_eq!(listed, all);
    }

    /// Compares the help with its file; `UPDATE_SCRIPTS=1` writes the file.
    #[test]
    fn help_is_as_it_is_kept() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/command_line/help.txt");
        let help = help();
        if std::env::var_os("UPDATE_SCRIPTS").is_some() {
            std::fs::write(path, &help).unwrap();
        }
        assert_eq!(help, std::fs::read_to_string(path).unwrap());
        assert!(help.lines().count() < 50 && help.lines().all(|line| line.len() <= 110), "{help}");
    }

    #[test]
    fn endpoints_are_client_urls_that_the_environment_may_name() {
        let tree = tree();
        let with_endpoints =
            |command: &&Command| command.get_arguments().any(|it| it.get_id() == "endpoints");
        let commands = tree
            .get_subcommands()
            .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
        let mut names = Vec::new();
        for command in commands.filter(with_endpoints) {
            names.push(command.get_name());
            for (flag, variable) in [
                ("endpoints", "ETCDCTL_ENDPOINTS"),
                ("cacert", "ETCDCTL_CACERT"),
                ("cert", "ETCDCTL_CERT"),
                ("key", "ETCDCTL_KEY"),
                ("user", "ETCDCTL_USER"),
                ("password", "ETCDCTL_PASSWORD"),
                ("insecure_skip_tls_verify", "ETCDCTL_INSECURE_SKIP_TLS_VERIFY"),
            ] {
                let found = command.get_arguments().find(|it| it.get_id() == flag).unwrap();
                assert_eq!(found.get_env(), Some(variable.as_ref()), "{}: {flag}", command.get_name());
            }
        }
        assert_eq!(names, ["archive", "import", "replace", "reseed"]);
    }
}
