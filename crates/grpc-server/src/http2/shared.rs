//! The limits of a connection, and what its calls share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Status;

use super::account::{Account, Body, CallerTotals, Room};

/// What one connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Bytes of one request message; etcd's `--max-request-bytes` and its overhead of 512 KiB.
    pub message_bytes_max: usize,
    /// Streams open at one time; etcd's `--max-concurrent-streams`.
    pub streams_max: u32,
    /// Time without any frame after which the client is asked whether it is still there; zero asks never.
    pub keepalive_interval: Duration,
    /// Time it has to answer, or to send anything else, before the connection is closed.
    pub keepalive_timeout: Duration,
    /// Pings of a client that come faster than this are too many; zero allows any.
    pub ping_spacing_min: Duration,
}

impl ConnectionLimits {
    /// Permissive limits, for tests and examples: a hundred streams; no client is asked whether it is there, and each may ping as it likes.
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

/// Once the member stops: time for a client to stop opening streams, to send the rest of requests that have
/// begun, and to read its last answers. What is not complete then would hold the member up without end.
pub(super) const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// After that, time for the bytes of answers that were given and not taken. Both together are shorter than
/// the time that a stopping member waits for its connections.
pub(super) const LAST_BYTES_WITHIN: Duration = Duration::from_secs(4);

/// What the calls of one connection share.
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

    /// Counts the message of a request that did not come by HTTP/2 until it is dropped, or refuses it. `user`
    /// is the caller of a request with a valid token.
    pub fn count_message(&self, bytes: usize, user: Option<u64>) -> Result<Body, Status> {
        let mut body = Body::new(&self.account);
        body.add(bytes, user).map(|()| body)
    }

    /// Room for answers.
    pub fn room(&self) -> Room<'_> {
        Room(&self.account)
    }

    /// Returns when the member stops.
    pub async fn stopped(&self) {
        let mut stop = self.stop.clone();
        let _sender_gone = stop.wait_for(|stop| *stop).await;
    }
}

/// Returns when the rest of a request is not waited for any longer, since the member stops.
pub(super) async fn stopped_for_requests(mut stop: watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await); // Or the sender is gone.
    sleep(LAST_ANSWER_WITHIN).await;
}
