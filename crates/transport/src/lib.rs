//! TCP and Unix sockets, plain or with TLS.
//!
//! Must not know what is spoken on them.

pub mod wire; // TCP and Unix sockets

pub mod tls; // certificates, handshakes
