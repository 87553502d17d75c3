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

pub mod front; // one client connection
pub mod identity; // who this member is, ever after its first start
pub mod ids; // member and cluster numbers
pub mod metrics; // figures for whoever watches

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
