//! Client connections, each with a connection to the member, and their streams.

use super::frames::{MessageReader, ProxyMessage};
use super::liar::{self, Liar, RequestFate};
use api::Method;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response, Version, header};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Far above the largest default response of etcd.
const WINDOW_BYTES: u32 = 16 << 20;
/// Removed from requests, because compressed messages cannot be read.
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";

/// Shared state of a connection's streams.
#[derive(Clone)]
struct Context {
    upstream: SendRequest<Bytes>,
    endpoint: String,
    liar: Arc<Mutex<Liar>>,
    begin: Instant,
}

/// Forwards the streams of a client until either connection closes.
pub async fn connection(stream: TcpStream, endpoint: String, liar: Arc<Mutex<Liar>>) {
    // On failure responses are only slower.
    let _ = stream.set_nodelay(true);
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let Ok(mut client) = builder.handshake(stream).await else { return };
    // A disconnected client redials, like when the member is down.
    let Ok(stream) = TcpStream::connect(&endpoint).await else { return };
    let _ = stream.set_nodelay(true);
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let Ok((upstream, member)) = builder.handshake(stream).await else { return };
    let mut member = pin!(member);
    let context = Context { upstream, endpoint, liar, begin: Instant::now() };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = client.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    streams.spawn(stream_of(context.clone(), request, respond));
                }
                Some(Err(_)) | None => return,
            },
            _ = &mut member => return,
            Some(_) = streams.join_next() => {}
        }
    }
}

/// Forwards a stream; if it breaks on one side it is reset on the other.
async fn stream_of(context: Context, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    if context.forward(request, &mut respond).await.is_err() {
        respond.send_reset(Reason::CANCEL);
    }
}

impl Context {
    async fn forward(
        &self,
        request: Request<RecvStream>,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (head, body) = request.into_parts();
        let (mut incoming, path) = (MessageReader::new(body), head.uri.path());
        let method = Method::of_path(path);
        let Some(first) = incoming.next().await? else { return Ok(()) };
        // Unreadable messages are forwarded unchanged.
        let readable = method.filter(|_| !first.compressed);
        let turn = readable.map(|method| liar::of(&self.liar).request(method, &first.bytes));
        let mut sent = first.frame();
        match turn.unwrap_or(RequestFate::Forward) {
            RequestFate::Forward => {}
            RequestFate::Changed(message) => sent = ProxyMessage::plain(message).frame(),
            RequestFate::Answer(message) => return answer(respond, message).await,
            RequestFate::Twice => {
                let (response, mut requests) = self.call(path, &head.headers).await?;
                requests.send_data(first.frame(), true)?;
                let mut body = MessageReader::new(response.await?.into_body());
                while body.next().await?.is_some() {}
            }
        }
        let (response, mut requests) = self.call(path, &head.headers).await?;
        send(&mut requests, sent).await?;
        let sending = async {
            while let Some(message) = incoming.next().await? {
                send(&mut requests, message.frame()).await?;
            }
            requests.send_data(Bytes::new(), true)?;
            // The response decides when the call is over.
            std::future::pending().await
        };
        tokio::select! {
            ended = sending => ended,
            ended = self.answers(response, respond, readable, &first.bytes) => ended,
        }
    }

    async fn call(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let request = Request::post(format!("http://{}{path}", self.endpoint)).version(Version::HTTP_2);
        let request = request.header(header::CONTENT_TYPE, "application/grpc").header(header::TE, "trailers");
        let Ok(mut request) = request.body(()) else { return Err(Reason::CANCEL.into()) };
        for (name, value) in headers {
            let own = [header::CONTENT_TYPE, header::TE, header::HOST].contains(name);
            if !own && name != ACCEPT_ENCODING {
                request.headers_mut().append(name, value.clone());
            }
        }
        self.upstream.clone().ready().await?.send_request(request, false)
    }

    async fn answers(
        &self,
        response: ResponseFuture,
        respond: &mut SendResponse<Bytes>,
        method: Option<Method>,
        request: &Bytes,
    ) -> Result<(), h2::Error> {
        let (head, body) = response.await?.into_parts();
        let is_over = body.is_end_stream();
        let mut answers = respond.send_response(Response::from_parts(head, ()), is_over)?;
        if is_over {
            return Ok(());
        }
        let (mut incoming, mut held) = (MessageReader::new(body), None);
        while let Some(message) = incoming.next().await? {
            let Some(method) = method.filter(|_| !message.compressed) else {
                send(&mut answers, message.frame()).await?;
                continue;
            };
            let now = self.begin.elapsed();
            let sent = liar::of(&self.liar).response(method, request, message.bytes, &mut held, now);
            for bytes in sent {
                send(&mut answers, ProxyMessage::plain(bytes).frame()).await?;
            }
        }
        let trailers = incoming.trailers().await?.unwrap_or_default();
        answers.send_trailers(trailers)
    }
}

async fn answer(respond: &mut SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut answers = respond.send_response(head, false)?;
    send(&mut answers, ProxyMessage::plain(message).frame()).await?;
    let trailers =
        HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))]);
    answers.send_trailers(trailers)
}

/// Sends within the flow-control window.
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let granted = poll_fn(|context| stream.poll_capacity(context)).await;
        let granted = granted.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
        stream.send_data(data.split_to(granted.min(data.len())), false)?;
    }
    Ok(())
}
