//! `kv-server completion` and `kv-server man`: the command line described, for shells and for readers; and
//! `import` with `restore`, which choose among three modules.
//!
//! Each command describes itself (`described`); what is printed is made of that, so it cannot differ from
//! what is accepted. Flags of the server are also accepted with one dash, as etcd's are, and from environment
//! variables; the pages say so once.

mod directories; // import and restore

mod tree; // all commands

mod manual; // pages in roff
mod shells; // completion scripts

pub use directories::run as run_import;
pub use manual::run_man;
pub use shells::run_completion;
pub use tree::{COMPLETION, MAN, help};
