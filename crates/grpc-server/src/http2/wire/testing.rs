//! A server that exposes its first stream, for tests of sending on it.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::DuplexStream;

use super::super::account::Account;
use super::super::meter::Meter;
use super::{BodyReader, StreamWriter, Turn, WireDriver};

/// Returns the response half of the first request on `io`. A separate task drives the connection.
pub(crate) async fn first_stream(io: DuplexStream) -> StreamWriter {
    first_call(io).await.1
}

/// Returns both halves of the first request.
pub(crate) async fn first_call(io: DuplexStream) -> (BodyReader, StreamWriter) {
    counted_call(io, Arc::new(Account::new(Arc::default()))).await
}

/// Returns the response half, with the memory of the connection counted in `account`.
pub(super) async fn counted_stream(io: DuplexStream, account: Arc<Account>) -> StreamWriter {
    counted_call(io, account).await.1
}

async fn counted_call(io: DuplexStream, account: Arc<Account>) -> (BodyReader, StreamWriter) {
    let limits = ::http2::Limits {
        stream_unsent_bytes_max: usize::MAX,
        connection_unsent_bytes_max: usize::MAX,
        ..::http2::Limits::default()
    };
    let mut connection = WireDriver::new(io, limits, Meter::new(Duration::ZERO), account);
    let wire = Arc::clone(connection.wire());
    let begun = loop {
        match poll_fn(|context| connection.poll_turn(true, context)).await {
            Turn::Call(begun) => break begun,
            Turn::Resets | Turn::Idle => {}
            Turn::Closed => panic!("the connection ends before its first request"),
        }
    };
    let (reader, writer) = begun.open(&wire);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                turn = poll_fn(|context| connection.poll_turn(true, context)) => {
                    if let Turn::Closed = turn {
                        return;
                    }
                }
                () = poll_fn(|context| wire.poll_rest(context)) => {}
            }
        }
    });
    (reader, writer)
}
