//! Failed handshakes in the log: at most one line per second, since anyone can cause them.

use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

use process::log::Pace;

/// What was logged, and what was not.
#[derive(Default)]
pub struct Refusals(Mutex<Pace>);

impl Refusals {
    pub fn note(&self, port: &'static str, remote: IpAddr, reason: &str) {
        if let Some(unlogged) = self.0.lock().next(Instant::now()) {
            let message = "rejected connection: the TLS handshake failed";
            tracing::warn!(port, remote_addr = %remote, error = reason, unlogged, message);
        }
    }
}
