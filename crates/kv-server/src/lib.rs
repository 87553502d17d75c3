//! The server process: etcd's v3 API over `raft-node` and `mvcc`.
//!
//! ```text
//!   client ─▶ listen ─▶ service ─▶ member ─▶ raft-node ─▶ apply ─▶ state-machine ─▶ mvcc
//!                 └───▶ http                   │  ▲                                  │
//!                                              ▼  │                             store_thread
//!                                             peer ◀──▶ other members
//! ```
//!
//! The border inside this crate: `node` starts everything and builds one `member::Member` from
//! `{raft handle, mvcc store, identity, settings, metrics, finished compactions}`; `service::routes(member)` turns it
//! into gRPC; `http` asks the same `Member` for health. Sockets, files, threads and signals stay on this side of it.
//!
//! This crate is glue: it holds no state that matters after a crash, and decides nothing that replicas must agree on.

pub mod flags; // what was said on the command line
pub mod settings; // what one member was told to be
pub mod url; // addresses as flags give them

pub mod bootstrap; // from settings and a directory to an identity and its log
pub mod directory; // one member's home on disk
pub mod identity; // who this member is, ever after its first start
pub mod ids; // member and cluster numbers
pub mod local_cluster; // the same command in N terminals
pub mod log; // the process's own words
pub mod metrics; // figures for whoever watches
pub mod shutdown; // the end, asked for or forced
pub mod store_thread;
pub mod version; // which version, in three senses // checkpoints and compaction, away from every request

pub mod clients; // the client port
pub mod front;
pub mod http; // health, version, metrics
pub mod listen;
pub mod peer; // member to member // sockets that others dial // one client connection

pub mod member; // this member, as the services see it
pub mod service; // etcd's gRPC methods

use std::ffi::OsString;
use std::process::ExitCode;

/// The whole life of the process, from its arguments to its exit code.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    match flags::parse(arguments, environment) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}
