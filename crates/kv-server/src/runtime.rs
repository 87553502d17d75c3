//! The threads that serve sockets, in one place.
//!
//! One pool with a worker per core: a connection's task moves to an idle worker when its own is busy. Raft, the log,
//! apply and the store have threads of their own and never run here.

use tokio::runtime::{Builder, Runtime};

pub fn build() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads(cores).thread_name("serve").enable_all().build()
}
