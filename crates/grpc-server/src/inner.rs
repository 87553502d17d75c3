//! Calls that this process makes to its own services: HTTP/2 over a pipe in memory.
//!
//! The gateway's calls take the way of every other call: the same methods, limits, counters and checks of
//! tokens. A connection is opened with the first call, and ends when its [`Inner`] is dropped and its calls
//! have ended.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::Request;
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::http2::{self, ConnectionLimits, GrpcService, HotMethods, Methods, StreamMethods};
use admission::{ClientId, Holder, Place, Places};
use process::shutdown::Stop;

/// Bytes on their way in each direction. What does not fit waits where it was made.
const PIPE_BYTES: usize = 64 << 10;
/// Bytes of an answer that wait for the caller of one call.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Those of all calls of a connection: as much as may be, so that no call waits for another to be read.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Calls of one connection at one time. One more waits.
const CALLS_MAX: usize = 128;

/// A connection to the services of this process. Cheap to clone.
#[derive(Clone)]
pub struct Inner {
    serve: Arc<dyn Fn(DuplexStream) + Send + Sync>,
    calls: Arc<Semaphore>,
    opened: Arc<Mutex<Option<SendRequest<Bytes>>>>,
    client: ClientId,
    /// Where connections that make calls are counted, if they are; and the place of this one.
    places: Option<(Arc<Places>, Arc<Holder>)>,
    place: Arc<OnceLock<Place>>,
}

impl Inner {
    /// Calls of a client will be answered by `methods` within `limits`.
    pub fn new<H, T, G>(
        client: ClientId,
        methods: Methods<H, T, G>,
        limits: ConnectionLimits,
        totals: Arc<http2::CallerTotals>,
        stop: Stop,
    ) -> Inner
    where
        H: HotMethods + Sync,
        T: StreamMethods + Sync,
        G: GrpcService + Sync,
    {
        let serve = move |io: DuplexStream| {
            let (methods, totals, stop) = (methods.clone(), Arc::clone(&totals), stop.receiver());
            tokio::spawn(http2::serve(io, methods, limits, totals, stop));
        };
        Inner {
            serve: Arc::new(serve),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            opened: Arc::default(),
            client,
            places: None,
            place: Arc::default(),
        }
    }

    /// The same, counted among the connections that make calls.
    pub fn with_places(self, places: Arc<Places>, holder: Arc<Holder>) -> Inner {
        Inner { places: Some((places, holder)), ..self }
    }

    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The connection, if it may lose its place to another one.
    pub fn holder(&self) -> Option<&Arc<Holder>> {
        self.places.as_ref().map(|(_, holder)| holder)
    }

    /// Counts the connection, with its first call, as one of this caller's, until it and its calls have
    /// ended. False if there are too many.
    pub fn enter(&self, caller: u64) -> bool {
        let Some((places, holder)) = self.places.as_ref().filter(|_| self.place.get().is_none()) else {
            return true;
        };
        match places.take(caller, holder) {
            Some(place) => {
                // A second call of the connection may have counted it meanwhile. Then this place is free
                // again.
                drop(self.place.set(place));
                true
            }
            None => self.place.get().is_some(),
        }
    }

    /// The right to make a call, until it is dropped.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).acquire_owned().await.ok()
    }

    /// Begins a call. The message is sent on the returned stream.
    pub async fn call(&self, request: Request<()>) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        self.ready().await?.send_request(request, false)
    }

    /// The open connection, or a new one: a connection that its services ended is not used again.
    async fn ready(&self) -> Result<SendRequest<Bytes>, h2::Error> {
        let mut opened = self.opened.lock().await;
        if let Some(sender) = opened.as_ref()
            && let Ok(sender) = sender.clone().ready().await
        {
            return Ok(sender);
        }
        let sender = self.open().await?;
        opened.insert(sender).clone().ready().await
    }

    async fn open(&self) -> Result<SendRequest<Bytes>, h2::Error> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        (self.serve)(theirs);
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(ours)
            .await?;
        // It ends with the last call, or when the services end it, which the calls report.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// Sends `message` as the other side takes it. An error means that the call has ended, or ends now.
pub async fn send(
    stream: &mut SendStream<Bytes>,
    mut message: Bytes,
    is_last: bool,
) -> Result<(), h2::Error> {
    while !message.is_empty() {
        stream.reserve_capacity(message.len());
        let granted = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let granted = granted.ok_or_else(|| h2::Error::from(Reason::CANCEL))??;
        let part = message.split_to(granted.min(message.len()));
        let ends = is_last && message.is_empty();
        stream.send_data(part, ends)?;
    }
    Ok(())
}
