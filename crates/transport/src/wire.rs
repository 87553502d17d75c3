//! TCP sockets, and Unix sockets of this machine.
//!
//! A Unix socket is a file. It is removed when its [`SocketFile`] is dropped: by the thread that stops the
//! member, because an accepting task may not run again before the process exits. A killed process leaves it,
//! so the next start replaces a file that no process listens on. A file that another process listens on, and
//! a file of another type, are left unchanged.
//!
//! Independent of the protocols on top.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};

/// TCP keep-alive: idle time, probe interval, and number of probes. A host that vanishes is detected within
/// a minute.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

pub enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    /// Returns the address of the peer; None on a Unix socket.
    pub fn source(&self) -> Option<IpAddr> {
        Some(self.peer_address()?.ip())
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Accepts the next connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Wire> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _address) = listener.accept().await?;
                // Small responses must not wait for an acknowledgement. An error means that the socket is
                // already broken.
                drop(stream.set_nodelay(true));
                let _as_it_was = keep_alive(&stream);
                Ok(Wire::Tcp(stream))
            }
            Listener::Unix(listener) => Ok(Wire::Unix(listener.accept().await?.0)),
        }
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

fn keep_alive(stream: &TcpStream) -> Result<(), Errno> {
    let (idle, interval, count) = KEEPALIVE;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, idle)?;
    set_tcp_keepintvl(stream, interval)?;
    set_tcp_keepcnt(stream, count)
}

/// The file of a socket created by this process. Removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a file created since by another process must not be removed.
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|id| id == self.id) {
            // The next start replaces a remaining file.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens on a Unix socket at `path`. Must be called within the runtime.
pub fn listen_unix(path: &Path, backlog: u32) -> io::Result<(Listener, SocketFile)> {
    remove_stale(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile { path: path.to_owned(), id: identity(path)? };
    Ok((Listener::Unix(socket.listen(backlog)?), file))
}

/// Removes a socket that no process listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is a file, not a socket"));
        }
        Ok(_) => {}
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        // A full backlog also has a listener.
        Ok(()) | Err(Errno::AGAIN) => Err(Errno::ADDRINUSE.into()),
        Err(error) => Err(error.into()),
    }
}

impl Wire {
    /// Connects to the Unix socket at `path`.
    pub async fn connect_unix(path: &Path) -> io::Result<Wire> {
        UnixStream::connect(path).await.map(Wire::Unix)
    }

    /// Returns the address of the peer; None on a Unix socket.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match self {
            // A dual-stack listener reports IPv4 addresses in IPv6 form.
            Wire::Tcp(stream) => {
                let address = stream.peer_addr().ok()?;
                Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
            }
            Wire::Unix(_) => None,
        }
    }

    /// Returns the first byte from the peer without consuming it; None at end of stream.
    pub async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let count = match self {
            Wire::Tcp(stream) => stream.peek(&mut byte).await?,
            Wire::Unix(stream) => {
                let peek = || Ok(recv(stream, &mut byte[..], RecvFlags::PEEK)?.0);
                stream.async_io(Interest::READABLE, peek).await?
            }
        };
        Ok((count > 0).then_some(byte[0]))
    }

    /// Reports whether the peer has closed its sending side, or the connection has failed. A read detects
    /// that only after all earlier data.
    pub fn has_ended(&self) -> bool {
        let ready = match self {
            Wire::Tcp(stream) => stream.ready(Interest::READABLE).now_or_never(),
            Wire::Unix(stream) => stream.ready(Interest::READABLE).now_or_never(),
        };
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Wire::Unix(_))
    }
}

/// Implements reads and writes for a connection of two kinds: one branch per call.
macro_rules! io_of_two_kinds {
    ($connection:ident, $first:ident, $second:ident) => {
        impl tokio::io::AsyncRead for $connection {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $connection::$first(stream) => Pin::new(stream).poll_read(context, buffer),
                    $connection::$second(stream) => Pin::new(stream).poll_read(context, buffer),
                }
            }
        }

        impl tokio::io::AsyncWrite for $connection {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $connection::$first(stream) => Pin::new(stream).poll_write(context, bytes),
                    $connection::$second(stream) => Pin::new(stream).poll_write(context, bytes),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $connection::$first(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                    $connection::$second(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $connection::$first(stream) => stream.is_write_vectored(),
                    $connection::$second(stream) => stream.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $connection::$first(stream) => Pin::new(stream).poll_flush(context),
                    $connection::$second(stream) => Pin::new(stream).poll_flush(context),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $connection::$first(stream) => Pin::new(stream).poll_shutdown(context),
                    $connection::$second(stream) => Pin::new(stream).poll_shutdown(context),
                }
            }
        }
    };
}

pub(crate) use io_of_two_kinds;

io_of_two_kinds!(Wire, Tcp, Unix);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_file_is_replaced_only_when_no_process_listens_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (listener, file) = listen_unix(&path, 8).unwrap();
        assert_eq!(listen_unix(&path, 8).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let _stream = Wire::connect_unix(&path).await.unwrap();
        assert!(listener.accept().await.unwrap().is_unix());
        drop(file);
        assert!(!path.exists());
        // The state after a kill.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(listen_unix(&path, 8).unwrap());
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen_unix(&path, 8).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_at_once_does_not_begin() {
        let directory = tempfile::tempdir().unwrap();
        let (unix, _file) = listen_unix(&directory.path().join("s"), 8).unwrap();
        let tcp = Listener::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap());
        for is_begun in [false, true] {
            let address = tcp.local_addr().unwrap();
            let mut dialled =
                [Wire::Tcp(TcpStream::connect(address).await.unwrap()), connect_to(&directory).await];
            for (listener, stream) in [&tcp, &unix].into_iter().zip(&mut dialled) {
                if is_begun {
                    tokio::io::AsyncWriteExt::write_all(stream, b"x").await.unwrap();
                }
                tokio::io::AsyncWriteExt::shutdown(stream).await.unwrap();
                let first = listener.accept().await.unwrap().first_byte().await;
                assert_eq!(matches!(first, Ok(Some(_))), is_begun);
            }
        }
    }

    async fn connect_to(directory: &tempfile::TempDir) -> Wire {
        Wire::connect_unix(&directory.path().join("s")).await.unwrap()
    }

    #[tokio::test]
    async fn the_file_of_another_listener_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = listen_unix(&path, 8).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = listen_unix(&path, 8).unwrap();
        drop(first);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }
}
