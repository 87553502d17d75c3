//! The command `completion`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;

use super::arguments::run_as;
use super::program::Program;

/// Name of the command.
pub const COMPLETION: &str = "completion";

/// Shells with tested and packaged scripts.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

const MORE: &str = "\
Examples:
  bash, for now or for good:
    source <(PROGRAM completion bash)
    PROGRAM completion bash > ~/.local/share/bash-completion/completions/PROGRAM
  zsh, in a directory that $fpath names:
    PROGRAM completion zsh > ~/.zfunc/_PROGRAM
  fish:
    PROGRAM completion fish > ~/.config/fish/completions/PROGRAM.fish";

#[derive(Debug, Parser)]
#[command(about = "Prints a completion script for a shell.")]
struct CompletionArguments {
    #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

/// Returns the definition of the command, for the program with this name.
pub fn completion_command(program: &'static str) -> Command {
    CompletionArguments::command().name(COMPLETION).after_long_help(MORE.replace("PROGRAM", program))
}

/// Runs the command; `arguments` follow its name.
pub fn run_completion(program: &Program, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = format!("{} {COMPLETION}", program.name);
    run_as(&command, completion_command(program.name), arguments, |arguments: &CompletionArguments| {
        let _unwritten = io::stdout().write_all(&script(program, arguments.shell));
        Ok::<(), Infallible>(())
    })
}

fn script(program: &Program, shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program.tree.clone(), program.name, &mut script);
    if shell == Shell::Bash {
        // clap_complete 4.6 escapes the hyphen of a program differently where it selects a command and
        // where it lists the command's flags, so the flags are not found.
        let text = String::from_utf8(script).expect("a script is text");
        let (escaped, listed) = (program.name.replace('-', "__subcmd__"), program.name.replace('-', "__"));
        return text.replace(&escaped, &listed).into_bytes();
    }
    script
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::program;
    use super::*;

    #[test]
    fn every_shell_completes_flags_and_commands() {
        for shell in SHELLS {
            let script = String::from_utf8(script(&program(), shell.parse().unwrap())).unwrap();
            for word in ["grace-period", "replace", "completion"] {
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

    /// Compares the completions that bash offers for the last word of a line.
    #[test]
    fn bash_completes_flags_of_commands() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script(&program(), Shell::Bash)).unwrap();
        let ask = r#". "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _a__program a-program "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            echo "${COMPREPLY[*]}""#;
        for (line, wanted) in [
            ("a-program --data", "--data-dir"),
            ("a-program c", "completion"),
            ("a-program member r", "replace reseed"),
            ("a-program member replace --gr", "--grace-period"),
            ("a-program member replace --view ", "long short"),
        ] {
            let words = line.split(' ');
            let output = std::process::Command::new("bash")
                .args(["-c", ask, "bash"])
                .arg(file.path())
                .args(words)
                .output();
            let offered = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(offered.trim(), wanted, "{line}");
        }
    }
}
