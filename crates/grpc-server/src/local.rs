//! Calls that arrive as JSON: they share limits, counters and the shutdown with all other calls of their
//! connection, and use the same [`CallHandler`] as HTTP/2 connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::http2::{
    AnswerReader, CallHandler, CallerTotals, ConnectionLimits, ConnectionShared, serve_stream,
};
use admission::{ClientId, Holder};
use auth::Connection;
use process::shutdown::Stop;

/// Concurrent calls per connection. Further ones wait for [`TURN_TIMEOUT`].
const CALLS_MAX: usize = 128;
/// Timeout of that wait: streams may be endless, and the client may wait for a response before it closes
/// one.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection for JSON calls. Cheap to clone.
#[derive(Clone)]
pub struct LocalConnection {
    connection: Connection,
    /// Limits and counters, like on an HTTP/2 connection.
    pub shared: Arc<ConnectionShared>,
    calls: Arc<Semaphore>,
    holder: Arc<Holder>,
}

impl LocalConnection {
    /// Calls of `connection`, within `limits`. `holder` has the place of the connection.
    pub fn new(
        connection: Connection,
        limits: ConnectionLimits,
        totals: Arc<CallerTotals>,
        holder: Arc<Holder>,
        stop: &Stop,
    ) -> LocalConnection {
        let calls = CALLS_MAX.min(usize::try_from(limits.streams_max).unwrap_or(CALLS_MAX));
        LocalConnection {
            connection,
            shared: Arc::new(ConnectionShared::new(limits, totals, stop.receiver())),
            calls: Arc::new(Semaphore::new(calls)),
            holder,
        }
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn client(&self) -> ClientId {
        self.connection.client
    }

    /// The holder of the connection's place.
    pub fn holder(&self) -> &Arc<Holder> {
        &self.holder
    }

    /// Returns a permit for a call. None if none becomes available in time.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        timeout(TURN_TIMEOUT, Arc::clone(&self.calls).acquire_owned()).await.ok()?.ok()
    }

    /// Serves a call with requests from a channel, each with its prefix. Dropping the returned future
    /// cancels the call.
    pub fn stream<C: CallHandler>(
        &self,
        calls: C,
        call: C::Call,
        requests: mpsc::Receiver<Bytes>,
    ) -> (AnswerReader, impl Future<Output = ()> + Send + 'static) {
        let (answers, stream) = AnswerReader::of(requests);
        let shared = Arc::clone(&self.shared);
        (answers, async move {
            let serve = move |requests, replies| async move { calls.stream(call, requests, replies).await };
            serve_stream(serve, stream, &shared).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_beyond_those_of_its_connection_does_not_wait_without_end() {
        let (_stopper, stop) = process::shutdown::stop();
        let limits = ConnectionLimits::for_tests(1 << 20);
        let connection =
            LocalConnection::new(Connection::default(), limits, Arc::default(), Holder::new(), &stop);
        let mut turns = Vec::new();
        while let Some(turn) = connection.turn().await {
            turns.push(turn);
        }
        assert_eq!(turns.len(), CALLS_MAX.min(limits.streams_max as usize));
        turns.pop();
        assert!(connection.turn().await.is_some());
    }
}
