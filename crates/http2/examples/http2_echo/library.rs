//! With the crate `h2`: all calls of a connection in its task, bodies dropped as they arrive.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::TcpStream;

/// Requests with incomplete bodies.
type Calls = Vec<(RecvStream, SendResponse<Bytes>)>;

pub async fn serve(socket: TcpStream) {
    // An error closes the connection, which is sufficient here.
    let _ = run(socket).await;
}

async fn run(socket: TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(socket).await?;
    let mut calls = Calls::new();
    poll_fn(|context| {
        loop {
            // Accept all available requests before responding: each poll writes the queued output.
            while let Poll::Ready(accepted) = connection.poll_accept(context) {
                let Some(call) = accepted else { return Poll::Ready(Ok(())) };
                let (request, respond) = call?;
                calls.push((request.into_body(), respond));
            }
            let mut answered = false;
            let mut at = 0;
            while at < calls.len() {
                match calls[at].0.poll_data(context) {
                    Poll::Ready(Some(Ok(bytes))) => {
                        calls[at].0.flow_control().release_capacity(bytes.len())?;
                    }
                    Poll::Ready(Some(Err(_))) => drop(calls.swap_remove(at)),
                    Poll::Ready(None) => {
                        answer(calls.swap_remove(at).1)?;
                        answered = true;
                    }
                    Poll::Pending => at += 1,
                }
            }
            // Responses leave when the connection is polled again.
            if !answered {
                return Poll::Pending;
            }
        }
    })
    .await
}

fn answer(mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(Bytes::from_static(&crate::MESSAGE), false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
