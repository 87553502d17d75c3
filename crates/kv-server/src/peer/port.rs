//! Listener of the peer port: accepts connections and serves HTTP/2 on each.
//!
//! * With TLS, peers are authenticated before HTTP/2 starts.
//! * Connections with other protocols are closed.

use std::time::Duration;

use api::peer::peer_server::PeerServer as Generated;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;

use super::connections::Connections;
use super::context::{MESSAGE_BYTES_MAX, STREAMS_MAX, WINDOW_BYTES};
use super::server::PeerServer;
use grpc_server::listen::{self, Permits};
use process::shutdown::Stop;
use transport::tls::{Acceptor, Port, Stream};
use transport::wire::Wire;

/// Maximum size of request headers. A member sends a few hundred bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Interval of keep-alive pings on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Serves the peer port until `stop`.
pub fn serve(listeners: Vec<Port>, server: &PeerServer, stop: &Stop) {
    let permits = Permits::new(server.connections_max);
    let connections = Connections::new(server.connections_max);
    for (listener, tls) in listeners {
        let (server, ending, connections) = (server.clone(), stop.clone(), connections.clone());
        let serving = move |stream| {
            connection(stream, tls.clone(), connections.clone(), server.clone(), ending.clone())
        };
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

async fn connection(
    stream: Wire,
    tls: Option<Acceptor>,
    connections: Connections,
    server: PeerServer,
    stop: Stop,
) {
    let open = connections.open(stream.source());
    let stream = match tls {
        None => Stream::Plain(stream),
        Some(acceptor) => {
            let given_up = async {
                tokio::select! {
                    () = open.must_close() => {}
                    () = stop.stopped() => {}
                }
            };
            let Some(stream) = acceptor.accept(stream, given_up).await else { return };
            stream
        }
    };
    let service = Generated::new(server.with_greeter(open.greeter()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    // Anything but an HTTP/2 preface is an error of hyper's first read.
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .serve_connection(TokioIo::new(open.gate(stream)), TowerToHyperService::new(service));
    // No graceful shutdown: Raft retransmits in-flight messages. Errors are the peer's.
    tokio::select! {
        _ = connection => {}
        () = open.must_close() => {}
        () = stop.stopped() => {}
    }
}
