//! The threads that serve sockets, in one place.
//!
//! ```text
//!   serve × half the cores   clients: gRPC, HTTP, and the replies of Raft
//!   peers × 1                other members' messages, and Raft's driver; with one or two cores `serve` carries them as well
//!   tls × half the cores     handshakes of clients, where their port has TLS
//!   peer-tls × 1             handshakes of members, where theirs has
//! ```
//!
//! * A client that asks for much may keep a thread busy for long, so heartbeats have a separate thread where
//!   there are cores for it. With two cores it costs more than it saves: linearizable ranges 25.6 µs of
//!   server time each against 20.8, puts 47 against 43 (three members, in turn), all of it wake-ups from
//!   thread to thread. Ranges over many keys run on the blocking pool in any case.
//! * The driver runs where the peers are served: what a message calls for leaves without a switch of threads
//!   (0017).
//! * Half the cores: the log, apply and the kernel's side of every socket want the other half. A second
//!   thread on two cores makes each call a third dearer, since threads wake each other for work that one
//!   could do.
//!
//! * A handshake is up to a millisecond of arithmetic, and anyone can begin one. Its threads give way to all
//!   others.
//!
//! The log, apply and the store have separate threads and never run here.

use tokio::runtime::{Builder, Runtime};

/// Up to so many cores one thread serves clients and peers.
const SHARED_CORES_MAX: usize = 2;

/// Which ports have handshakes.
#[derive(Clone, Copy, Debug)]
pub struct TlsOf {
    pub clients: bool,
    pub peers: bool,
}

/// Sockets are looked at after so many turns of tasks. A connection that takes a large answer has one turn
/// after the other, of 100 to 200 µs: with tokio's 61 turns, a put that came meanwhile waited 10 ms for its
/// first one.
const SOCKETS_EVERY: u32 = 16;

pub struct Runtimes {
    pub clients: Runtime,
    /// None where `clients` carries the peers.
    peers: Option<Runtime>,
    /// None where clients are not served inside TLS.
    tls: Option<Runtime>,
    /// None where members do not talk inside TLS.
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

    /// Where other members are spoken to.
    pub fn peers(&self) -> &Runtime {
        self.peers.as_ref().unwrap_or(&self.clients)
    }

    /// Where handshakes of clients run; where peers are served if there are none.
    pub fn tls(&self) -> &Runtime {
        self.tls.as_ref().unwrap_or_else(|| self.peers())
    }

    /// The same for those of members.
    pub fn peer_tls(&self) -> &Runtime {
        self.peer_tls.as_ref().unwrap_or_else(|| self.peers())
    }

    /// Does not wait for tasks that still run: their connections are closed.
    pub fn abandon(self) {
        self.clients.shutdown_background();
        for runtime in self.peers.into_iter().chain(self.tls).chain(self.peer_tls) {
            runtime.shutdown_background();
        }
    }
}

/// Gives other threads priority: for a thread that carries a whole store while requests are waiting. Linux
/// counts niceness by thread.
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
    builder.worker_threads(count).thread_name(name).event_interval(SOCKETS_EVERY).enable_all().build()
}
