//! The limits of a connection, and the state shared by its calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Status;

use super::account::{Account, Body, CallerTotals, Room};

/// Resource limits per connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Size of a request message; etcd's `--max-request-bytes` and its overhead of 512 KiB.
    pub message_bytes_max: usize,
    /// Streams open at one time; etcd's `--max-concurrent-streams`.
    pub streams_max: u32,
    /// Idle time after which the client is pinged; zero disables pings.
    pub keepalive_interval: Duration,
    /// Time for the client to acknowledge a ping, or to send anything else, before the connection is
    /// closed.
    pub keepalive_timeout: Duration,
    /// Minimum interval between pings of a client; zero allows any.
    pub ping_spacing_min: Duration,
}

impl ConnectionLimits {
    /// Permissive limits, for tests and examples: a hundred streams, no keep-alive, and no limit on pings.
    pub fn for_tests(message_bytes_max: usize) -> ConnectionLimits {
        ConnectionLimits {
            message_bytes_max,
            streams_max: 100,
            keepalive_interval: Duration::ZERO,
            keepalive_timeout: Duration::ZERO,
            ping_spacing_min: Duration::ZERO,
        }
    }
}

/// Time after the member stops for a client to stop opening streams, to send the rest of incomplete
/// requests, and to read its last responses. Without it, incomplete requests would delay the stop
/// indefinitely.
pub(super) const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after that for response bytes in the output. Both together are shorter than the time that a
/// stopping member waits for its connections.
pub(super) const LAST_BYTES_TIMEOUT: Duration = Duration::from_secs(4);

/// Time for a complete request to arrive: 2 MiB at 35 KB/s.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by the calls of a connection.
pub struct ConnectionShared {
    pub(super) limits: ConnectionLimits,
    pub(super) account: Arc<Account>,
    pub(super) stop: watch::Receiver<bool>,
}

impl ConnectionShared {
    pub fn new(
        limits: ConnectionLimits,
        totals: Arc<CallerTotals>,
        stop: watch::Receiver<bool>,
    ) -> ConnectionShared {
        ConnectionShared { limits, account: Arc::new(Account::new(totals)), stop }
    }

    /// Counts the message of a request from another protocol than HTTP/2 until it is dropped, or rejects
    /// it. `user` is the caller of a request with a valid token.
    pub fn count_message(&self, bytes: usize, user: Option<u64>) -> Result<Body, Status> {
        let mut body = Body::new(&self.account);
        body.add(bytes, user).map(|()| body)
    }

    /// Returns the memory accounting of responses.
    pub fn room(&self) -> Room<'_> {
        Room(&self.account)
    }

    /// Returns when the member stops.
    pub async fn stopped(&self) {
        let mut stop = self.stop.clone();
        let _sender_gone = stop.wait_for(|stop| *stop).await;
    }
}

/// Returns when a stopping member no longer waits for the rest of requests.
pub(super) async fn stopped_for_requests(mut stop: watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await); // An error means that the sender was dropped.
    sleep(LAST_RESPONSE_TIMEOUT).await;
}
