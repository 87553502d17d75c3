//! Notifications to systemd: `READY=1` when the process serves, `STOPPING=1` when it stops.
//!
//! For units of `Type=notify`, the service manager sets the socket in `NOTIFY_SOCKET`. Without the variable,
//! no message is sent. A message that cannot be sent is logged and dropped: the process never waits for it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// Notifies systemd that clients are served.
pub fn ready() {
    if std::env::var_os(VARIABLE).is_some() {
        tracing::info!("notifying init daemon");
        if tell("READY=1\nSTATUS=serving clients\n") {
            tracing::info!("successfully notified init daemon");
        }
    }
}

/// Notifies systemd that the process is stopping.
pub fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping\n");
}

/// Returns whether the message was sent.
fn tell(message: &str) -> bool {
    let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else { return false };
    match send(&socket, message.as_bytes()) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, socket = %socket.to_string_lossy(), "failed to notify systemd");
            false
        }
    }
}

/// Sends to `socket`: a path, or `@` and an abstract name.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket)?,
        _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor an abstract name")),
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reaches_a_path_and_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let name = format!("kv-server-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(path.as_os_str(), b"a").unwrap();
        send(OsStr::new(&format!("@{name}")), b"b").unwrap();
        for (socket, wanted) in [(by_path, b"a"), (by_name, b"b")] {
            let mut buffer = [0; 8];
            assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
            assert_eq!(&buffer[..1], wanted);
        }
        send(OsStr::new("vsock:2:1"), b"c").unwrap_err();
        send(directory.path().join("none").as_os_str(), b"c").unwrap_err();
    }
}
