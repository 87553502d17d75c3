//! A proxy in front of a member that violates guarantees on purpose, to test that a checker detects it.
//!
//! ```text
//!   client ──HTTP/2──▶ forward ──HTTP/2──▶ member
//!                         │ messages
//!                       Liar
//! ```
//!
//! Calls without a matching lie are forwarded unchanged.

pub mod lie; // kinds of faults

mod frames; // gRPC messages in a body
mod liar; // decides which messages to replace

mod forward; // connections and streams

use liar::Liar;
use lie::Lie;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinSet;

#[derive(Debug)]
pub struct Proxy {
    listener: TcpListener,
    endpoint: String,
    liar: Arc<Mutex<Liar>>,
}

/// Number of executions of each lie.
#[derive(Clone, Debug)]
pub struct LieCounts(Arc<Mutex<Liar>>);

impl Proxy {
    /// Listens without TLS in front of a member. Each lie is executed at every nth opportunity.
    pub async fn bind(
        listen: impl ToSocketAddrs,
        endpoint: String,
        lies: &[Lie],
        every: u64,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        Ok(Self { listener, endpoint, liar: Arc::new(Mutex::new(Liar::new(lies, every))) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn counts(&self) -> LieCounts {
        LieCounts(self.liar.clone())
    }

    /// Forwards until the future is dropped, which closes all connections.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    // The connection was closed before it was accepted.
                    let Ok((stream, _)) = accepted else { continue };
                    connections.spawn(forward::connection(stream, self.endpoint.clone(), self.liar.clone()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

impl LieCounts {
    pub fn get(&self) -> Vec<(Lie, u64)> {
        liar::of(&self.0).counts()
    }
}
