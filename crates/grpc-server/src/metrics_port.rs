//! The listeners of `--listen-metrics-urls`: HTTP/1 for probes and scrapers, plain or inside TLS.
//!
//! Their connections are counted apart from those of clients, so that a probe is answered however many
//! clients there are.

use axum::Router;

use super::http1::{self, Keep};
use super::listen::{self, Permits};
use super::socket::Socket;
use process::shutdown::Stop;
use transport::tls::{Acceptor, Port, Stream};
use transport::wire::Wire;

/// Connections open at one time. A kubelet and a scraper need some five. One more waits in the backlog. Each
/// is closed after one answer, so a place is held for two seconds without a request.
pub const CONNECTIONS_MAX: u32 = 32;

/// What is answered outside of TLS, where the Host header is checked, and inside.
pub struct Routers {
    pub plain: Router,
    pub secure: Router,
}

/// Serves every listener until `stop`.
pub fn serve(ports: Vec<Port>, routers: &Routers, stop: &Stop) {
    let permits = Permits::new(CONNECTIONS_MAX);
    for (listener, tls) in ports {
        let router = if tls.is_some() { &routers.secure } else { &routers.plain };
        let (router, until) = (router.clone(), stop.clone());
        let serving = move |stream| accepted(stream, tls.clone(), router.clone(), until.clone());
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

async fn accepted(stream: Wire, tls: Option<Acceptor>, router: Router, stop: Stop) {
    let stream = match tls {
        None => Some(Stream::Plain(stream)),
        Some(acceptor) => tokio::select! {
            accepted = acceptor.accept(stream) => accepted,
            () = stop.stopped() => None,
        },
    };
    let Some(stream) = stream else { return };
    http1::serve(Socket::new(stream), router, Keep::ForOne, &stop).await;
}
