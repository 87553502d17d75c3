//! The command `man`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser};
use clap_mangen::Man;

use super::arguments::run_as;
use super::program::Program;

/// Name of the command.
pub const MAN: &str = "man";

const MORE: &str = "\
Examples:
  PROGRAM man | man -l -
  PROGRAM man --output /usr/local/share/man/man1";

#[derive(Debug, Parser)]
#[command(about = "Prints a page of the manual in roff, or writes all of them.")]
struct ManArguments {
    /// The command that the page is about [default: the program itself].
    #[arg(conflicts_with = "output")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum ManualError {
    #[error("there is no command {0:?}")]
    Unknown(String),
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("write the page")]
    Print(#[source] io::Error),
}

/// Returns the definition of the command, for the program with this name.
pub fn man_command(program: &'static str) -> Command {
    ManArguments::command().name(MAN).after_long_help(MORE.replace("PROGRAM", program))
}

/// Runs the command; `arguments` follow its name.
pub fn run_man(program: &Program, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = format!("{} {MAN}", program.name);
    run_as(&command, man_command(program.name), arguments, |arguments| try_run(program, arguments))
}

fn try_run(program: &Program, arguments: &ManArguments) -> Result<(), ManualError> {
    let mut all = program.tree.clone();
    // Sets the full names of the commands.
    all.build();
    if let Some(directory) = &arguments.output {
        return write_all(program, &all, directory);
    }
    let mut command = &all;
    for name in &arguments.command {
        let found = command.find_subcommand(name);
        command = found.ok_or_else(|| ManualError::Unknown(arguments.command.join(" ")))?;
    }
    let page = page(program, command).map_err(ManualError::Print)?;
    match io::stdout().write_all(&page) {
        // Ignore a closed pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ManualError::Print(error)),
        _ => Ok(()),
    }
}

fn man(program: &Program, command: &Command) -> Man {
    Man::new(command.clone()).source(format!("{} {}", program.name, program.version)).manual(program.name)
}

fn page(program: &Program, command: &Command) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    man(program, command).render(&mut bytes)?;
    Ok(bytes)
}

fn write_all(program: &Program, command: &Command, directory: &Path) -> Result<(), ManualError> {
    let path = directory.join(man(program, command).get_filename());
    let written = page(program, command).and_then(|page| fs::write(&path, page));
    written.map_err(|error| ManualError::Write(path, error))?;
    command.get_subcommands().try_for_each(|below| write_all(program, below, directory))
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::program;
    use super::*;

    #[test]
    fn every_command_has_a_page_that_others_refer_to() {
        let directory = tempfile::tempdir().unwrap();
        let output = Some(directory.path().to_owned());
        try_run(&program(), &ManArguments { command: Vec::new(), output }).unwrap();
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        let wanted = "a-program-completion.1 a-program-man.1 a-program-member-replace.1 \
                      a-program-member-reseed.1 a-program-member.1 a-program.1";
        assert_eq!(names.join(" "), wanted);
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let own = read("a-program.1");
        for text in [".TH a-program 1", "data\\-dir", "a\\-program\\-member(1)", "a-program 1.2.3"] {
            assert!(own.contains(text), "{text}: {own}");
        }
        assert!(read("a-program-member-replace.1").contains("grace\\-period"));
        assert!(read("a-program-completion.1").contains("source <(a\\-program completion bash)"));
    }

    #[test]
    fn an_unknown_command_has_no_page() {
        let command = vec!["member".to_owned(), "add".to_owned()];
        let refused = try_run(&program(), &ManArguments { command, output: None }).unwrap_err();
        assert_eq!(refused.to_string(), "there is no command \"member add\"");
    }
}
