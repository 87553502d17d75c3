//! TCP and Unix sockets, plain or with TLS.
//!
//! Independent of the protocols on top.

pub mod wire; // TCP and Unix sockets

pub mod tls; // certificates, handshakes
