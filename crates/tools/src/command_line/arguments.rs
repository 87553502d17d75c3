//! Arguments of both commands, apart from what they do: the tree describes them too.

use std::path::PathBuf;

use clap::Parser;
use clap_complete::Shell;

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
