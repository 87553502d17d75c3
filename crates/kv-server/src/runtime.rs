//! The threads that serve sockets, in one place.
//!
//! ```text
//!   serve × half the cores   clients: gRPC, HTTP, and the replies of Raft
//!   peers × 1                other members' messages
//! ```
//!
//! * A client that asks for a million keys may keep a thread busy for as long as an election takes; so heartbeats have
//!   a thread of their own.
//! * Half the cores: the driver, the log, apply and the kernel's side of every socket want the other half. A second
//!   thread on two cores makes each call a third dearer, since threads wake each other for work that one could do.
//!
//! Raft, the log, apply and the store have threads of their own and never run here.

use tokio::runtime::{Builder, Runtime};

pub struct Runtimes {
    pub clients: Runtime,
    pub peers: Runtime,
}

impl Runtimes {
    pub fn build() -> std::io::Result<Runtimes> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Runtimes { clients: threads("serve", (cores / 2).max(1))?, peers: threads("peers", 1)? })
    }

    /// Leaves what still runs to its end: it has nobody to talk to any more.
    pub fn abandon(self) {
        self.clients.shutdown_background();
        self.peers.shutdown_background();
    }
}

fn threads(name: &str, count: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(count).thread_name(name).enable_all().build()
}
