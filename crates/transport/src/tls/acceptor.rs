//! From an accepted socket to an authenticated stream.
//!
//! The handshake and the checks are a task of the port's TLS threads. Its slot and its deadline begin when
//! the socket was accepted, and run where the connection is served. The socket stays registered with the
//! runtime that accepted it, so the stream goes back there without being moved between event loops.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::rustls::{ServerConfig, server};
use tokio_rustls::{LazyConfigAcceptor, TlsStream};

use super::handshakes::Handshakes;
use super::refusals::{Failure, RefusedHandshakes, reason};
use super::setup::{Live, Lookups, PortKind, common_name};
use crate::wire::{Wire, io_of_two_kinds};

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
    refusals: Arc<RefusedHandshakes>,
    lookups: Lookups,
    port: PortKind,
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
    pub fn new(live: Arc<Live>, threads: Handle, port: PortKind) -> Acceptor {
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

    /// The stream inside TLS; None if the handshake failed, took too long, or was given up, for newer ones or
    /// when `given_up` is ready. The socket is closed by then: its task may wait for a thread for long.
    pub async fn accept(&self, stream: Wire, given_up: impl Future<Output = ()>) -> Option<Stream> {
        let address = match stream.peer_address() {
            Some(address) => SocketAddr::new(address.ip().to_canonical(), address.port()),
            // Who connects to a Unix socket is on this machine.
            None if stream.is_unix() => (Ipv4Addr::LOCALHOST, 0).into(),
            None => return None,
        };
        let remote = address.ip();
        // Both begin here, so that a handshake that waits for its thread counts, and ends, as any other.
        let slot = self.handshakes.begin(remote);
        let deadline = Instant::now() + HANDSHAKE_WITHIN;
        let mut task = self.threads.spawn(handshake(self.clone(), stream, remote));
        let _aborted_when_dropped = AbortOnDrop(task.abort_handle());
        let ended = tokio::select! {
            ended = timeout_at(deadline, &mut task) => match ended {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => return None, // The member stops.
                Err(_) => {
                    let reason = format!("the handshake was not finished within {HANDSHAKE_WITHIN:?}");
                    Err(Some(Failure { server_name: String::new(), reason }))
                }
            },
            () = slot.displaced() => {
                let reason = "the handshake was given up for newer ones".to_owned();
                Err(Some(Failure { server_name: String::new(), reason }))
            }
            () = given_up => Err(None),
        };
        if ended.is_err() && !task.is_finished() {
            task.abort();
            drop(task.await);
        }
        ended
            .map_err(|failure| {
                if let Some(failure) = failure {
                    self.refusals.note(self.port, address, &failure);
                }
            })
            .ok()
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The error is None for a connection that was opened and closed, as probes of load balancers do.
async fn handshake(port: Acceptor, stream: Wire, remote: IpAddr) -> Result<Stream, Option<Failure>> {
    match stream.first_byte().await {
        Ok(Some(first)) if port.is_mixed && first != HANDSHAKE => return Ok(Stream::Plain(stream)),
        Ok(Some(_)) => {}
        Ok(None) | Err(_) => return Err(None),
    }
    let mut server_name = String::new();
    let ended = async {
        let (config, checks) = port.live.server().ok_or("there is no certificate to show")?;
        let hello = LazyConfigAcceptor::new(server::Acceptor::default(), stream);
        let hello = hello.await.map_err(|error| reason(&error))?;
        server_name = hello.client_hello().server_name().unwrap_or_default().to_owned();
        let stream = hello.into_stream(port.protocols.of(config)).await.map_err(|error| reason(&error))?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        checks.check(chain, remote, &port.lookups).await.map_err(|refused| refused.to_string())?;
        Ok(Stream::Tls(Box::new(TlsStream::Server(stream))))
    };
    let ended: Result<_, String> = ended.await;
    ended.map_err(|reason| Some(Failure { server_name, reason }))
}

/// A connection, plain or inside TLS. Which of the two is one branch per read and write.
pub enum Stream {
    Plain(Wire),
    Tls(Box<TlsStream<Wire>>),
}

impl Stream {
    /// Whether it is inside TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// As [`Wire::has_ended`].
    pub fn has_ended(&self) -> bool {
        match self {
            Stream::Plain(wire) => wire.has_ended(),
            Stream::Tls(stream) => stream.get_ref().0.has_ended(),
        }
    }

    /// The common name of the other side's certificate, which the handshake has verified; empty if it has
    /// none. None if no certificate was shown.
    pub fn common_name(&self) -> Option<String> {
        let Stream::Tls(stream) = self else { return None };
        common_name(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

io_of_two_kinds!(Stream, Plain, Tls);
