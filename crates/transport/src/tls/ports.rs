//! TLS of a member's two ports, from its settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;

use super::acceptor::Acceptor;
use super::dialer::Dialer;
use super::setup::{Live, PortKind, Reload, TlsError, with_self_signed};
use crate::wire::Listener;
use config::{PortTls, Settings, Urls};
use process::shutdown::Stop;

/// A listening socket and its TLS checks.
pub type Port = (Listener, Option<Acceptor>);

/// Runtimes of the handshakes. Handshakes of clients do not delay those of members.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeThreads<'a> {
    pub clients: &'a Handle,
    pub peers: &'a Handle,
}

/// TLS of the ports and the outgoing links of a member.
pub struct Tls {
    clients: Option<Acceptor>,
    peers: Option<Acceptor>,
    dialer: Dialer,
    shown: ShownAddress,
    reloads: Vec<Reload>,
}

/// Certificates currently presented. Cheap to clone.
#[derive(Clone, Default)]
pub struct ShownAddress(Vec<Arc<Live>>);

impl ShownAddress {
    /// Returns the expiry of the first presented certificate to expire, per port, in seconds since 1970.
    pub fn ends(&self) -> Vec<(&'static str, i64)> {
        let ends = self.0.iter().filter_map(|live| live.certificate_end());
        ends.map(|(port, end)| (port.name(), end)).collect()
    }
}

impl Tls {
    /// Reads all files and creates missing self-signed ones below `data_dir`. Handshakes run on `threads`.
    pub fn load(
        settings: &Settings,
        data_dir: &Path,
        threads: HandshakeThreads<'_>,
    ) -> Result<Tls, TlsError> {
        let (dialer, shown) = (Dialer::default(), ShownAddress::default());
        let mut tls = Tls { clients: None, peers: None, dialer, shown, reloads: Vec::new() };
        let years = settings.tls.self_signed_years;
        if let Some(port) = &settings.tls.client {
            let place = data_dir.join("fixtures").join("client");
            let port = with_self_signed(port, &place, &settings.listen_client_urls, years)?;
            let (live, reload) = Live::clients(port)?;
            tls.shown.0.push(Arc::clone(&live));
            tls.clients = Some(Acceptor::new(live, threads.clients.clone(), PortKind::Clients));
            tls.reloads.push(reload);
        }
        if let Some(port) = &settings.tls.peer {
            let place = data_dir.join("fixtures").join("peer");
            let port = with_self_signed(port, &place, &settings.listen_peer_urls, years)?;
            let (live, reload) = Live::peers(port)?;
            tls.shown.0.push(Arc::clone(&live));
            tls.peers = Some(Acceptor::new(live.clone(), threads.peers.clone(), PortKind::Peers));
            tls.dialer = Dialer::new(live, threads.peers.clone());
            tls.reloads.push(reload);
        }
        tls.dialer.source = settings.peer_source;
        Ok(tls)
    }

    pub fn shown(&self) -> ShownAddress {
        self.shown.clone()
    }

    pub fn dialer(&self) -> Dialer {
        self.dialer.clone()
    }

    /// Pairs the listeners of `urls`, in order, with the TLS of the client port.
    pub fn client_ports(&self, listeners: Vec<Listener>, urls: &Urls) -> Vec<Port> {
        with_acceptors(listeners, urls, self.clients.as_ref())
    }

    /// Like `client_ports`, for HTTP/1-only listeners.
    pub fn http1_ports(&self, listeners: Vec<Listener>, urls: &Urls) -> Vec<Port> {
        let acceptor = self.clients.as_ref().map(Acceptor::for_http1);
        with_acceptors(listeners, urls, acceptor.as_ref())
    }

    /// Like `client_ports`, for the peer port.
    pub fn peer_ports(&self, listeners: Vec<Listener>, urls: &Urls) -> Vec<Port> {
        with_acceptors(listeners, urls, self.peers.as_ref())
    }

    /// Reloads changed files on `threads` until `stop`.
    pub fn follow_files(self, threads: &Handle, stop: &Stop) {
        for reload in self.reloads {
            threads.spawn(reload.run(stop.clone()));
        }
    }
}

/// Reads the files that a start would read, without creating any. Returns the certificate files with the
/// time at which their first certificate expires, in seconds since 1970.
pub fn check_files(settings: &Settings) -> Result<Vec<(PathBuf, i64)>, TlsError> {
    let given = |port: &Option<PortTls>| port.clone().filter(|port| !port.is_self_signed);
    let mut read = Vec::new();
    if let Some(port) = given(&settings.tls.client) {
        read.push(Live::clients(port)?.1);
    }
    if let Some(port) = given(&settings.tls.peer) {
        read.push(Live::peers(port)?.1);
    }
    let ends = read.iter().flat_map(Reload::certificate_ends);
    let mut ends: Vec<(PathBuf, i64)> = ends.map(|(path, end)| (path.to_owned(), end)).collect();
    ends.sort();
    ends.dedup();
    Ok(ends)
}

fn with_acceptors(listeners: Vec<Listener>, urls: &Urls, acceptor: Option<&Acceptor>) -> Vec<Port> {
    let kinds = urls.listeners().into_iter().map(|(_, kinds)| kinds);
    listeners
        .into_iter()
        .zip(kinds)
        .map(|(listener, [is_plain, is_secure])| {
            (listener, acceptor.filter(|_| is_secure).map(|acceptor| acceptor.mixed(is_plain)))
        })
        .collect()
}
