//! Listen sockets: bound early, served when ready, with a bounded number of connections.
//!
//! ```text
//!   bind ──▶ (connections wait in the backlog) ──▶ accept loop ──▶ one task per connection, with a permit
//! ```
//!
//! * A port conflict is detected before any other component starts.
//! * The number of connections is bounded; further ones wait until a permit is free. The server can evict a
//!   connection in favour of a new one: [`Permits::places`].
//! * A shortage of file descriptors slows accepting down; the loop neither spins nor exits.
//! * After `stop` no connection is accepted, and [`Permits::drained`] returns when the last connection is
//!   closed.
//!
//! Independent of the protocol of the connections.

use std::future::Future;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use admission::Places;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

use config::{Url, Urls};
use process::shutdown::Stop;
use transport::wire::{Listener, SocketFile, Wire, listen_unix};

/// Connections that the kernel completes before they are accepted: 4096 clients may connect at a start.
const BACKLOG: u32 = 4096;
/// First and longest pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// One of every `ENDING_PART` permits is reserved for evicted connections while they close.
const ENDING_PART: u32 = 64;

#[derive(Debug, thiserror::Error)]
#[error("listen on {url}")]
pub struct BindError {
    url: Url,
    source: io::Error,
}

/// Sharing of a port between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// This process only.
    Alone,
    /// Also other processes of the same user that bind with the same option.
    WithOthers,
}

/// Binds every URL of a list exclusively. Must be called inside the runtime.
pub fn bind(urls: &Urls) -> Result<Vec<Listener>, BindError> {
    bind_as(urls, Sharing::Alone, &mut Vec::new())
}

/// Binds every URL of a list. The files of Unix sockets are added to `files`, which the caller must hold
/// while the sockets should be reachable. Must be called inside the runtime.
pub fn bind_as(
    urls: &Urls,
    sharing: Sharing,
    files: &mut Vec<SocketFile>,
) -> Result<Vec<Listener>, BindError> {
    let bind = |url: &Url| {
        bind_one(url, sharing, &mut *files)
            .map_err(|source| BindError { url: url.clone(), source: explained(source) })
    };
    urls.listeners().into_iter().map(|(url, _)| url).map(bind).collect()
}

/// Adds advice to an error, where its cause is known.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "{error}: another process listens there, or another URL of this member; a second member \
                 needs other URLs, and --local-cluster 3 runs three members on one machine"
            ),
        ),
        _ => error,
    }
}

fn bind_one(url: &Url, sharing: Sharing, files: &mut Vec<SocketFile>) -> io::Result<Listener> {
    if let Some(path) = url.socket_path() {
        let (listener, file) = listen_unix(path, BACKLOG)?;
        files.push(file);
        return Ok(listener);
    }
    let address = url.bind_address().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the host is not an address of this machine")
    })?;
    // Like Go: the unspecified address is dual-stack, where the system has IPv6.
    let (socket, address) = match TcpSocket::new_v6() {
        Ok(socket) if address.ip().is_unspecified() && set_ipv6_v6only(&socket, false).is_ok() => {
            (socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()))
        }
        _ if address.is_ipv4() => (TcpSocket::new_v4()?, address),
        socket => (socket?, address),
    };
    // A restarted member must not wait for its own old connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(sharing == Sharing::WithOthers)?;
    socket.bind(address)?;
    socket.listen(BACKLOG).map(Listener::Tcp)
}

/// Permits for connections that are served concurrently.
#[derive(Clone, Debug)]
pub struct Permits {
    free: Arc<Semaphore>,
    total: u32,
}

impl Permits {
    pub fn new(total: u32) -> Permits {
        Permits { free: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Returns permits for connections that may evict one another. There are a few more socket permits, for
    /// evicted connections that are still closing.
    pub fn places(&self) -> Arc<Places> {
        Places::new((self.total - (self.total / ENDING_PART).max(1)).max(1) as usize)
    }

    /// Returns when all connections are closed.
    pub async fn drained(&self) {
        let _never_closed = self.free.acquire_many(self.total).await;
    }
}

/// Accepts connections until `stop`, and serves each in a separate task.
pub async fn accept<S, F>(listener: Listener, permits: Permits, stop: Stop, serve: S)
where
    S: Fn(Wire) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut pause = PAUSE;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.stopped() => return,
        };
        match accepted {
            Ok(stream) => {
                pause = PAUSE;
                let permit = tokio::select! {
                    permit = Arc::clone(&permits.free).acquire_owned() => permit,
                    () = stop.stopped() => return,
                };
                // Boxed: an async block stores an awaited capture twice.
                let serving = Box::pin(serve(stream));
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
                // Let its first bytes be read before a newer connection can evict it.
                tokio::task::yield_now().await;
            }
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, pause_ms = pause.as_millis() as u64, "accept failed; retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Reports whether the peer disconnected before the connection was accepted, which is no fault of this
/// process.
fn is_the_peers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use process::log::causes;
    use process::shutdown;

    fn urls(port: u16) -> Urls {
        Urls::parse(&format!("http://127.0.0.1:{port}")).unwrap()
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let held = bind(&urls(0)).unwrap();
        let port = held[0].local_addr().unwrap().port();
        let error = causes(&bind(&urls(port)).unwrap_err());
        assert!(error.starts_with(&format!("listen on http://127.0.0.1:{port}: ")), "{error}");
        assert!(error.contains("in use"), "{error}");
    }

    #[tokio::test]
    async fn any_address_is_one_of_both_families() {
        for host in ["0.0.0.0", "[::]", ""] {
            let urls = Urls::parse(&format!("http://{host}:0,http://{host}:0")).unwrap();
            let listeners = bind(&urls).unwrap();
            assert_eq!(listeners.len(), 1, "{host}");
            let port = listeners[0].local_addr().unwrap().port();
            for client in ["127.0.0.1", "::1"] {
                let dialled = TcpStream::connect((client, port)).await.unwrap();
                let source = listeners[0].accept().await.unwrap().source().unwrap();
                assert_eq!(source, dialled.local_addr().unwrap().ip(), "{host}");
            }
        }
    }

    #[tokio::test]
    async fn a_port_may_be_shared_by_those_who_ask_for_it() {
        let bind = |port, sharing| bind_as(&urls(port), sharing, &mut Vec::new());
        let held = bind(0, Sharing::WithOthers).unwrap();
        let port = held[0].local_addr().unwrap().port();
        bind(port, Sharing::WithOthers).unwrap();
        bind(port, Sharing::Alone).unwrap_err();
    }

    #[tokio::test]
    async fn a_connection_beyond_the_cap_waits_for_its_turn() {
        let listener = bind(&urls(0)).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let permits = Permits::new(1);
        let (stopper, stop) = shutdown::stop();
        let echo = |mut stream: Wire| async move {
            let mut byte = [0];
            while let Ok(1) = stream.read(&mut byte).await {
                drop(stream.write_all(&byte).await);
            }
        };
        let loop_ = tokio::spawn(accept(listener, permits.clone(), stop, echo));
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(b"2").await.unwrap();
        first.write_all(b"1").await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        assert!(second.try_read(&mut byte).is_err(), "served beyond the cap");
        drop(first);
        second.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"2");
        stopper.stop();
        loop_.await.unwrap();
        drop(second);
        permits.drained().await;
    }
}
