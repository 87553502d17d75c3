//! From an accepted socket to an authenticated stream.
//!
//! The handshake and the checks are a task of the port's TLS threads. Its slot and its deadline begin when
//! the socket was accepted, and run where the connection is served. The socket stays registered with the
//! runtime that accepted it, so the stream goes back there without being moved between event loops.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::handshakes::Handshakes;
use super::refusals::Refusals;
use super::setup::{Live, Lookups};
use super::stream::Stream;
use crate::wire::Wire;

/// A handshake is two round trips and a turn of a processor. A client that has not finished it by then is as
/// silent as one that sends no first byte.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// A connection inside TLS begins so.
const HANDSHAKE: u8 = 22;

/// Admits connections of one port.
#[derive(Clone)]
pub struct Acceptor {
    live: Arc<Live>,
    threads: Handle,
    handshakes: Handshakes,
    refusals: Arc<Refusals>,
    lookups: Lookups,
    /// For the log.
    port: &'static str,
    protocols: Protocols,
    /// Whether connections outside of TLS are admitted as well.
    is_mixed: bool,
}

/// What may be spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocols {
    /// All that the port knows.
    All,
    Http1,
}

impl Protocols {
    /// The configuration of one handshake.
    fn of(self, config: Arc<ServerConfig>) -> Arc<ServerConfig> {
        match self {
            Protocols::All => config,
            // A dozen pointers are copied. The session tickets stay those of the port.
            Protocols::Http1 => {
                let mut config = ServerConfig::clone(&config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Arc::new(config)
            }
        }
    }
}

impl Acceptor {
    /// Handshakes run on `threads`.
    pub fn new(live: Arc<Live>, threads: Handle, port: &'static str) -> Acceptor {
        Acceptor {
            live,
            threads,
            handshakes: Handshakes::default(),
            refusals: Arc::default(),
            lookups: Lookups::default(),
            port,
            protocols: Protocols::All,
            is_mixed: false,
        }
    }

    /// The same port, for listeners that speak HTTP/1 alone.
    pub fn for_http1(&self) -> Acceptor {
        Acceptor { protocols: Protocols::Http1, ..self.clone() }
    }

    /// The same port, for a listener on which what does not begin with a handshake is let in as it is.
    pub fn mixed(&self, is_mixed: bool) -> Acceptor {
        Acceptor { is_mixed, ..self.clone() }
    }

    /// The stream inside TLS; None if the handshake failed, took too long, or was given up for newer ones. To
    /// be dropped at any time: the handshake ends with it.
    pub async fn accept(&self, stream: Wire) -> Option<Stream> {
        if self.is_mixed {
            let first = timeout(HANDSHAKE_WITHIN, stream.first_byte()).await.ok()?.ok()??;
            if first != HANDSHAKE {
                return Some(Stream::Plain(stream));
            }
        }
        let remote = match stream.peer_address() {
            Some(address) => address.ip().to_canonical(),
            // Who connects to a Unix socket is on this machine.
            None if stream.is_unix() => Ipv4Addr::LOCALHOST.into(),
            None => return None,
        };
        // Both begin here, so that a handshake that waits for its thread counts, and ends, as any other.
        let slot = self.handshakes.begin(remote);
        let deadline = Instant::now() + HANDSHAKE_WITHIN;
        let task = self.threads.spawn(handshake(self.clone(), stream, remote));
        let _aborted_when_dropped = AbortOnDrop(task.abort_handle());
        let ended = tokio::select! {
            ended = timeout_at(deadline, task) => match ended {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => return None, // The member stops.
                Err(_) => Err(format!("not finished within {HANDSHAKE_WITHIN:?}")),
            },
            () = slot.displaced() => Err("given up for newer ones".to_owned()),
        };
        ended.map_err(|reason| self.refusals.note(self.port, remote, &reason)).ok()
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn handshake(port: Acceptor, stream: Wire, remote: IpAddr) -> Result<Stream, String> {
    let (config, checks) = port.live.server().ok_or("there is no certificate to show")?;
    let config = port.protocols.of(config);
    let stream = TlsAcceptor::from(config).accept(stream).await.map_err(|error| error.to_string())?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    checks.check(chain, remote, &port.lookups).await.map_err(|refused| refused.to_string())?;
    Ok(Stream::Tls(Box::new(TlsStream::Server(stream))))
}
