//! `kv-server completion SHELL`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap_complete::Shell;

use super::tree::{CompletionArguments, tree};
use crate::check_config;
use process::arguments::run;

/// The whole of the command; `arguments` are those after its name.
pub fn run_completion(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run("kv-server completion", arguments, |arguments: &CompletionArguments| {
        let _unwritten = io::stdout().write_all(&script(arguments.shell));
        Ok::<(), Infallible>(())
    })
}

fn script(shell: Shell) -> Vec<u8> {
    let mut all = tree();
    // `check-config` takes the flags of the server, and reads them as the server does.
    let flags: Vec<_> = all.get_arguments().filter(|flag| flag.get_id() != "help").cloned().collect();
    all = all.mut_subcommand(check_config::COMMAND, |command| command.args(flags));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut all, "kv-server", &mut script);
    if shell == Shell::Bash {
        // clap_complete 4.6 escapes the hyphen of a program differently where it selects a command and
        // where it lists the command's flags, so the flags are not found.
        let text = String::from_utf8(script).expect("a script is text");
        return text.replace("kv__subcmd__server", "kv__server").into_bytes();
    }
    script
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::super::tree::SHELLS;
    use super::*;

    #[test]
    fn every_shell_completes_flags_and_commands() {
        for shell in SHELLS {
            let script = String::from_utf8(script(shell.parse().unwrap())).unwrap();
            for word in ["listen-metrics-urls", "check-config", "endpoints", "replace", "until-caught-up"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn other_shells_are_refused_with_those_there_are() {
        for shell in ["elvish", "powershell"] {
            let refused = CompletionArguments::try_parse_from(["completion", shell]).unwrap_err().to_string();
            assert!(refused.contains("[possible values: bash, zsh, fish]"), "{refused}");
        }
    }

    /// What bash offers for the last word of a line.
    #[test]
    fn bash_completes_flags_of_commands() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script(Shell::Bash)).unwrap();
        let ask = r#". "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _kv__server kv-server "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}""#;
        for (line, wanted) in [
            ("kv-server --listen-m", "--listen-metrics-urls"),
            ("kv-server c", "completion check-config"),
            ("kv-server top --e", "--endpoints"),
            ("kv-server top --view ", "overview members calls clients prefixes space work"),
            ("kv-server member r", "replace reseed"),
            ("kv-server member replace --end", "--endpoints"),
            ("kv-server check-config --quota", "--quota-backend-bytes"),
            ("kv-server import --li", "--live"),
        ] {
            let words = line.split(' ');
            let output = Command::new("bash").args(["-c", ask, "bash"]).arg(file.path()).args(words).output();
            let offered = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(offered.trim(), wanted, "{line}");
        }
    }
}
