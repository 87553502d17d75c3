//! `kv-server man`: manual pages.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::tree::{ManArguments, tree};
use api::version;
use process::arguments::run;

#[derive(Debug, thiserror::Error)]
enum ManualError {
    #[error("there is no command {0:?}")]
    Unknown(String),
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("write the page")]
    Print(#[source] io::Error),
}

/// Runs the command; `arguments` follow its name.
pub fn run_man(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    run("kv-server man", arguments, try_run)
}

fn try_run(arguments: &ManArguments) -> Result<(), ManualError> {
    let mut all = tree();
    // Sets the full names of the commands.
    all.build();
    if let Some(directory) = &arguments.output {
        return write_all(&all, directory);
    }
    let mut command = &all;
    for name in &arguments.command {
        let found = command.find_subcommand(name);
        command = found.ok_or_else(|| ManualError::Unknown(arguments.command.join(" ")))?;
    }
    let page = page(command).map_err(ManualError::Print)?;
    match io::stdout().write_all(&page) {
        // Ignore a closed pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ManualError::Print(error)),
        _ => Ok(()),
    }
}

fn man(command: &Command) -> Man {
    Man::new(command.clone()).source(format!("kv-server {}", version::OWN)).manual("kv-server")
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man(command).render(&mut page)?;
    Ok(page)
}

fn write_all(command: &Command, directory: &Path) -> Result<(), ManualError> {
    let path = directory.join(man(command).get_filename());
    page(command).and_then(|page| fs::write(&path, page)).map_err(|error| ManualError::Write(path, error))?;
    command.get_subcommands().try_for_each(|below| write_all(below, directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_others_refer_to() {
        let directory = tempfile::tempdir().unwrap();
        let output = Some(directory.path().to_owned());
        try_run(&ManArguments { command: Vec::new(), output }).unwrap();
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        let wanted = "kv-server-archive.1 kv-server-check-config.1 kv-server-completion.1 kv-server-import.1 \
                      kv-server-inspect.1 kv-server-man.1 kv-server-member-replace.1 \
                      kv-server-member-reseed.1 kv-server-member.1 kv-server-restore.1 kv-server-top.1 kv-server.1";
        assert_eq!(names.join(" "), wanted);
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let server = read("kv-server.1");
        for text in
            [".TH kv-server 1", "listen\\-metrics\\-urls", "kv\\-server\\-top(1)", "ETCD_NAME_OF_FLAG"]
        {
            assert!(server.contains(text), "{text}: {server}");
        }
        assert!(read("kv-server-top.1").contains("host\\-whitelist"));
    }

    #[test]
    fn an_unknown_command_has_no_page() {
        let command = vec!["member".to_owned(), "add".to_owned()];
        let refused = try_run(&ManArguments { command, output: None }).unwrap_err();
        assert_eq!(refused.to_string(), "there is no command \"member add\"");
    }
}
