//! The listeners of `--listen-metrics-urls`: HTTP/1 for probes and scrapers, plain or inside TLS.
//!
//! Their connections are counted apart from those of clients, so that a probe is answered however many
//! clients there are.

use std::sync::Arc;

use axum::Router;

use super::http1::{self, Keep};
use super::listen::{self, Permits};
use super::socket::Socket;
use admission::{Holder, Places};
use auth::caller_of;
use process::shutdown::Stop;
use transport::tls::{Acceptor, Port, Stream};
use transport::wire::Wire;

/// Connections open at one time. A kubelet and a scraper need some five. One more waits in the backlog. Each
/// is closed after one answer, so a place is held for two seconds without a request.
pub const CONNECTIONS_MAX: u32 = 32;
/// Those that may stay. One more displaces another, which ends at once: a client that does not read its
/// answer keeps no probe out.
const PLACES: usize = 24;

/// What is answered outside of TLS, where the Host header is checked, and inside.
#[derive(Clone)]
pub struct Routers {
    pub plain: Router,
    pub secure: Router,
}

/// Serves every listener until `stop`.
pub fn serve(ports: Vec<Port>, routers: &Routers, stop: &Stop) {
    let (permits, places) = (Permits::new(CONNECTIONS_MAX), Places::new(PLACES));
    for (listener, tls) in ports {
        let (routers, until, places) = (routers.clone(), stop.clone(), Arc::clone(&places));
        let serving =
            move |stream| accepted(stream, tls.clone(), routers.clone(), Arc::clone(&places), until.clone());
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

async fn accepted(stream: Wire, tls: Option<Acceptor>, routers: Routers, places: Arc<Places>, stop: Stop) {
    let (holder, caller) = (Holder::new(), caller_of(stream.peer_address().map(|address| address.ip())));
    let Some(_place) = places.take(caller, &holder) else { return };
    let stream = match tls {
        None => Some(Stream::Plain(stream)),
        Some(acceptor) => {
            let given_up = async {
                tokio::select! {
                    () = holder.displaced() => {}
                    () = stop.stopped() => {}
                }
            };
            acceptor.accept(stream, given_up).await
        }
    };
    let Some(stream) = stream else { return };
    let router = if stream.is_secure() { routers.secure } else { routers.plain };
    http1::serve(Socket::new(stream), router, Keep::ForOne, &holder, &stop).await;
}
