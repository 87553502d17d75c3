//! TLS of the client port and of the peer port, with rustls.
//!
//! ```text
//!   files ─▶ Contents ─▶ Loaded: server and client configuration, checks ─▶ Live, reloaded when a file changes
//!
//!   accepted socket ─▶ Acceptor: handshake and checks on the TLS threads ─▶ Stream, back on the thread it came from
//!   URL of a peer ────▶ Dialer:   the same, towards other members
//! ```
//!
//! Invariants:
//! - No handshake runs on a thread that serves clients, peers or Raft's driver.
//! - Handshakes of members have a separate thread, which clients cannot occupy.
//! - A stream is handed out only after the certificate of the other side has passed every check.
//! - A file that cannot be used leaves the configuration as it was.
//!
//! Does not know what is spoken inside TLS.

mod setup; // files, configurations, checks

mod handshakes; // how many are in flight
mod refusals; // what is logged of them

mod acceptor;
mod dialer;
mod resolver; // addresses of names

mod ports; // both ports of a member

pub use acceptor::{Acceptor, Stream};
pub use dialer::Dialer;
pub use ports::{HandshakeThreads, Port, ShownAddress, Tls, check_files};
pub use refusals::broken;
pub use setup::TlsError;
