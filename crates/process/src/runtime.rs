//! Threads that serve sockets.
//!
//! ```text
//!   serve × half the cores   clients: gRPC, HTTP, and Raft's responses
//!   peers × 1                peer messages and Raft's driver; on `serve` if there are one or two cores
//!   tls × half the cores     TLS handshakes of clients, if their port uses TLS
//!   peer-tls × 1             TLS handshakes of peers, if their port uses TLS
//! ```
//!
//! * An expensive client request may occupy a thread for long, so heartbeats have a separate thread if there
//!   are cores for it. With two cores, that costs more than it saves, all of it in cross-thread wakeups:
//!   linearizable ranges take 25.6 µs of server time instead of 20.8, puts 47 instead of 43 (three members).
//!   Ranges over many keys run on the blocking pool in any case.
//! * The driver runs on the peers' threads: messages in response to a message are sent without a thread
//!   switch (0017).
//! * Half the cores, since the log, apply and the kernel's socket work need the other half. A second thread
//!   on two cores makes each call a third more expensive, since the threads wake each other for work that a
//!   single thread could do.
//! * A handshake takes up to a millisecond of CPU time, and any client can start a handshake. Its threads run
//!   at low priority.
//!
//! The log, apply and the store have separate threads and never run here.

use tokio::runtime::{Builder, Runtime};

/// Maximum number of cores with which clients and peers share a thread.
const SHARED_CORES_MAX: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct TlsOf {
    pub clients: bool,
    pub peers: bool,
}

/// Number of task polls between two polls of the sockets. A connection that receives a large response is
/// polled repeatedly, for 100 to 200 µs each: with tokio's default of 61, a concurrent put waited 10 ms for
/// its first poll.
const SOCKETS_INTERVAL: u32 = 16;

pub struct Runtimes {
    pub clients: Runtime,
    /// None if `clients` serves the peers as well.
    peers: Option<Runtime>,
    /// None without TLS for clients.
    tls: Option<Runtime>,
    /// None without TLS for peers.
    peer_tls: Option<Runtime>,
}

impl Runtimes {
    pub fn build(tls: TlsOf) -> std::io::Result<Runtimes> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let peers = if cores > SHARED_CORES_MAX { Some(threads("peers", 1)?) } else { None };
        let half = (cores / 2).max(1);
        let peer_tls = tls.peers.then(|| tls_threads("peer-tls", 1)).transpose()?;
        let tls = tls.clients.then(|| tls_threads("tls", half)).transpose()?;
        Ok(Runtimes { clients: threads("serve", half)?, peers, tls, peer_tls })
    }

    /// Returns the runtime for peer connections.
    pub fn peers(&self) -> &Runtime {
        self.peers.as_ref().unwrap_or(&self.clients)
    }

    /// Returns the runtime for client handshakes, or that of the peers if there is none.
    pub fn tls(&self) -> &Runtime {
        self.tls.as_ref().unwrap_or_else(|| self.peers())
    }

    /// Returns the runtime for peer handshakes, or that of the peers if there is none.
    pub fn peer_tls(&self) -> &Runtime {
        self.peer_tls.as_ref().unwrap_or_else(|| self.peers())
    }

    /// Shuts down without waiting for running tasks; their connections are closed.
    pub fn abandon(self) {
        self.clients.shutdown_background();
        for runtime in self.peers.into_iter().chain(self.tls).chain(self.peer_tls) {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the current thread, for a thread that processes a whole store while requests are
/// pending. On Linux, niceness is per thread.
pub fn yield_to_others() {
    const NICENESS: i32 = 10;
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "the thread keeps its priority");
    }
}

fn tls_threads(name: &str, count: usize) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).thread_name(name).on_thread_start(yield_to_others).enable_all().build()
}

fn threads(name: &str, count: usize) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).thread_name(name).event_interval(SOCKETS_INTERVAL).enable_all().build()
}
