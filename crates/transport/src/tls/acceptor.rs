//! Turns an accepted socket into an authenticated stream.
//!
//! The handshake and the checks are a task on the port's TLS threads. Its slot and its deadline start when
//! the socket is accepted, and are enforced on the serving thread. The socket stays registered with the
//! runtime that accepted it, so the stream returns there without moving between event loops.

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

/// A handshake takes two round trips and little processor time. A slower client is treated like a silent one.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Content type of the first TLS record of a connection.
const HANDSHAKE: u8 = 22;

/// Admits connections of a single port. Cheap to clone.
#[derive(Clone)]
pub struct Acceptor {
    live: Arc<Live>,
    threads: Handle,
    handshakes: Handshakes,
    refusals: Arc<RefusedHandshakes>,
    lookups: Lookups,
    port: PortKind,
    protocols: Protocols,
    /// True if connections without TLS are admitted as well.
    is_mixed: bool,
}

/// Application protocols offered in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocols {
    /// All protocols of the port.
    All,
    Http1,
}

impl Protocols {
    /// Returns the configuration of a handshake.
    fn of(self, config: Arc<ServerConfig>) -> Arc<ServerConfig> {
        match self {
            Protocols::All => config,
            // Copies a dozen pointers. The session tickets remain those of the port.
            Protocols::Http1 => {
                let mut config = ServerConfig::clone(&config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Arc::new(config)
            }
        }
    }
}

impl Acceptor {
    /// Creates an acceptor that runs handshakes on `threads`.
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

    /// Returns an acceptor of the same port for HTTP/1-only listeners.
    pub fn for_http1(&self) -> Acceptor {
        Acceptor { protocols: Protocols::Http1, ..self.clone() }
    }

    /// Returns an acceptor of the same port. If `is_mixed`, it admits connections that do not start with a
    /// handshake as plain text.
    pub fn mixed(&self, is_mixed: bool) -> Acceptor {
        Acceptor { is_mixed, ..self.clone() }
    }

    /// Returns the TLS stream; None if the handshake failed, timed out, or was abandoned, either for newer
    /// ones or because `given_up` completed. The socket is closed by then, even if its task still waits for
    /// a thread.
    pub async fn accept(&self, stream: Wire, given_up: impl Future<Output = ()>) -> Option<Stream> {
        let address = match stream.peer_address() {
            Some(address) => SocketAddr::new(address.ip().to_canonical(), address.port()),
            // Clients of a Unix socket are on this machine.
            None if stream.is_unix() => (Ipv4Addr::LOCALHOST, 0).into(),
            None => return None,
        };
        let remote = address.ip();
        // Slot and deadline start here, so a handshake waiting for its thread is counted and bounded like
        // any other.
        let slot = self.handshakes.begin(remote);
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut task = self.threads.spawn(handshake(self.clone(), stream, remote));
        let _aborted_when_dropped = AbortOnDrop(task.abort_handle());
        let ended = tokio::select! {
            ended = timeout_at(deadline, &mut task) => match ended {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => return None, // The member stops.
                Err(_) => {
                    let reason = format!("the handshake was not finished within {HANDSHAKE_TIMEOUT:?}");
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

/// Runs a handshake. The error is None for a connection that was opened and closed, like load balancer
/// probes do.
async fn handshake(port: Acceptor, stream: Wire, remote: IpAddr) -> Result<Stream, Option<Failure>> {
    match stream.first_byte().await {
        Ok(Some(first)) if port.is_mixed && first != HANDSHAKE => return Ok(Stream::Plain(stream)),
        Ok(Some(_)) => {}
        Ok(None) | Err(_) => return Err(None),
    }
    let mut server_name = String::new();
    let ended = async {
        let (config, checks) = port.live.server().ok_or("no server certificate is configured")?;
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

/// A connection, plain or with TLS, at the cost of one branch per read and write.
pub enum Stream {
    Plain(Wire),
    Tls(Box<TlsStream<Wire>>),
}

impl Stream {
    /// Reports whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// See [`Wire::has_ended`].
    pub fn has_ended(&self) -> bool {
        match self {
            Stream::Plain(wire) => wire.has_ended(),
            Stream::Tls(stream) => stream.get_ref().0.has_ended(),
        }
    }

    /// Returns the common name in the peer's verified certificate; empty if it has none. None if the peer
    /// did not present a certificate.
    pub fn common_name(&self) -> Option<String> {
        let Stream::Tls(stream) = self else { return None };
        common_name(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

io_of_two_kinds!(Stream, Plain, Tls);
