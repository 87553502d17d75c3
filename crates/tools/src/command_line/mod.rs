//! `kv-server completion` and `kv-server man`: descriptions of the command line for shells and for readers;
//! and the dispatch of `import` and `restore` to three modules.
//!
//! The output is generated from each command's clap definition (`described`), so it matches the accepted
//! flags. Flags of the server are also accepted with one dash, as etcd's are, and from environment
//! variables; the pages state that once.

mod directories; // import and restore

mod tree; // all commands

mod manual; // pages in roff
mod shells; // completion scripts

pub use directories::run as run_import;
pub use manual::run_man;
pub use shells::run_completion;
pub use tree::{COMPLETION, MAN, help};
