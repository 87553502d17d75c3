//! TLS of the client port and of the peer port, with rustls.
//!
//! ```text
//!   files ─▶ Contents ─▶ Loaded: server and client configuration, checks ─▶ Live, reloaded when a file changes
//!
//!   accepted socket ─▶ Acceptor: handshake and checks on the TLS threads ─▶ Stream, back on its original thread
//!   URL of a peer ────▶ Dialer:   the same, towards other members
//! ```
//!
//! Invariants:
//! - Handshakes do not run on threads that serve clients, peers or Raft's driver.
//! - Handshakes of members have a separate thread, which clients cannot occupy.
//! - A stream is returned only after the peer's certificate has passed all checks.
//! - An unusable file leaves the configuration unchanged.
//!
//! Independent of the protocols inside TLS.

mod setup; // files, configurations, checks

mod handshakes; // handshakes in flight
mod refusals; // log of failed handshakes

mod acceptor;
mod dialer;
mod resolver; // addresses of host names

mod ports; // both ports of a member

pub use acceptor::{Acceptor, Stream};
pub use dialer::Dialer;
pub use ports::{HandshakeThreads, Port, ShownAddress, Tls, check_files};
pub use refusals::broken;
pub use setup::TlsError;
