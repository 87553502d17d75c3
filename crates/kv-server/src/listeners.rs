//! The listeners of one member, and the services on each.
//!
//! ```text
//!   --listen-client-urls       gRPC and HTTP; gRPC only if the next are set
//!   --listen-client-http-urls  HTTP only
//!   --listen-metrics-urls      health and metrics only, from before the member is ready
//!   --listen-peer-urls         other members
//! ```
//!
//! All are bound before any other part starts, so that a port in use is detected before this member sends a
//! message.

use std::sync::Arc;

use ::http::HeaderMap;
use tokio::runtime::Runtime;

use crate::http::{self, AllowedValues, Gateway, Http, LinearizableRead, MetricsPage};
use crate::member::{Gauges, Member};
use crate::peer::LeaseService;
use crate::rpc::Dispatcher;
use crate::status::StatusSource;
use config::{Settings, Urls};
use grpc_server::client_port::{self, Services, Traffic};
use grpc_server::listen::{self, BindError, Permits, Sharing};
use grpc_server::{http2, metrics_port};
use process::shutdown::Stop;
use telemetry::metrics::{Exposition, SlowCalls};
use transport::tls::{Port, ShownAddress, Tls};
use transport::wire::SocketFile;

/// A client listener, and the protocols it serves.
pub type ClientPort = (Port, Traffic);

/// Bound listeners that do not serve yet.
pub struct Listeners {
    pub clients: Vec<ClientPort>,
    pub metrics: Vec<Port>,
    pub peers: Vec<Port>,
    /// Files of the Unix sockets, removed on drop; to be retained until the member has stopped.
    pub files: Vec<SocketFile>,
}

impl Listeners {
    /// Binds all URLs: peer URLs inside `peers`, the remaining ones inside `clients`.
    pub fn bind(
        settings: &Settings,
        tls: &Tls,
        clients: &Runtime,
        peers: &Runtime,
    ) -> Result<Listeners, BindError> {
        let sharing = if settings.shares_ports { Sharing::WithOthers } else { Sharing::Alone };
        let mut files = Vec::new();
        let mut bind = |runtime: &Runtime, urls: &Urls| {
            let _inside = runtime.enter();
            listen::bind_as(urls, sharing, &mut files)
        };
        let (grpc, http) = (&settings.listen_client_urls, &settings.listen_client_http_urls);
        let (metrics, members) = (&settings.listen_metrics_urls, &settings.listen_peer_urls);
        let traffic = if http.is_empty() { Traffic::GrpcAndHttp } else { Traffic::Grpc };
        let with = |traffic| move |port: Port| (port, traffic);
        let grpc = tls.client_ports(bind(clients, grpc)?, grpc).into_iter().map(with(traffic));
        let http = tls.http1_ports(bind(clients, http)?, http).into_iter().map(with(Traffic::Http));
        let clients_ports = grpc.chain(http).collect();
        let metrics = tls.client_ports(bind(clients, metrics)?, metrics);
        let peers = tls.peer_ports(bind(peers, members)?, members);
        Ok(Listeners { clients: clients_ports, metrics, peers, files })
    }
}

/// Builds the plain HTTP handlers.
pub fn http(
    member: &Arc<Member>,
    leases: &LeaseService,
    settings: &Settings,
    certificates: ShownAddress,
) -> Http {
    let features = settings.feature_gates.clone();
    let gauges = Gauges::new(Arc::clone(member), leases.table().clone(), features, certificates.clone());
    let metrics = Arc::new(MetricsPage::new(Exposition::new(&member.metrics, Box::new(gauges))));
    let status = StatusSource::new(Arc::clone(member), leases.table().clone(), certificates);
    let (member, linearizable) = (Arc::clone(member), Arc::new(LinearizableRead::new(Arc::clone(member))));
    Http { member, linearizable, metrics, status, gateway: None, enable_pprof: settings.enable_pprof }
}

/// Serves health and metrics. Started before the member is ready, so that probes can observe that it is
/// not.
pub fn serve_probes(ports: Vec<Port>, settings: &Settings, http: &Http, stop: &Stop) {
    for url in settings.listen_metrics_urls.iter() {
        tracing::info!(address = %url, "serving metrics");
    }
    let secure = http::metrics_router(http.clone());
    let plain = http::for_probes_of(secure.clone(), &AllowedValues::parse(&settings.host_whitelist));
    metrics_port::serve(ports, &metrics_port::Routers { plain, secure }, stop);
}

/// Services of a client listener.
pub type ClientServices = Services<Dispatcher>;

/// Builds the services of client listeners.
pub fn services(mut http: Http, leases: &LeaseService, settings: &Settings, stop: &Stop) -> ClientServices {
    let member = Arc::clone(&http.member);
    let slow = SlowCalls::new(settings.slow_call, Arc::clone(&member.metrics));
    let dispatcher = Dispatcher::new(Arc::clone(&member), leases.clone(), slow, stop.clone());
    http.gateway = settings.enable_grpc_gateway.then(|| {
        let (auth, limits) = (Arc::clone(&member.auth), &member.limits);
        let client_of = move |client, headers: &HeaderMap| auth.gateway_client(client, headers);
        let dispatcher = dispatcher.clone();
        let admission = Arc::clone(&member.admission);
        Gateway::new(
            dispatcher,
            admission,
            limits.message_bytes_max(),
            limits.txn_ops_max,
            Arc::new(client_of),
        )
    });
    let router = http::router(http, &AllowedValues::parse(&settings.cors));
    Services {
        memory: Arc::clone(&member.admission.memory),
        calls: dispatcher,
        http: http::for_hosts(router.clone(), &AllowedValues::parse(&settings.host_whitelist)),
        https: router,
        limits: front_limits(settings),
    }
}

/// Serves clients until `stop`.
pub fn serve_clients(
    ports: Vec<ClientPort>,
    settings: &Settings,
    services: &ClientServices,
    permits: &Permits,
    stop: &Stop,
) {
    tracing::info!("ready to serve client requests");
    let has_http_alone = !settings.listen_client_http_urls.is_empty();
    announce(&settings.listen_client_urls, if has_http_alone { "grpc" } else { "grpc+http" });
    announce(&settings.listen_client_http_urls, "http");
    client_port::serve(ports, services, permits, stop);
}

fn announce(urls: &Urls, traffic: &str) {
    for url in urls.iter() {
        let message = if url.scheme().is_secure() {
            "serving client traffic securely"
        } else {
            "serving client traffic insecurely; this is strongly discouraged!"
        };
        tracing::info!(traffic, address = url.authority(), message);
    }
}

fn front_limits(settings: &Settings) -> http2::ConnectionLimits {
    http2::ConnectionLimits {
        message_bytes_max: settings.limits.message_bytes_max(),
        streams_max: settings.connections.streams_max,
        keepalive_interval: settings.connections.keepalive_interval,
        keepalive_timeout: settings.connections.keepalive_timeout,
        ping_spacing_min: settings.connections.ping_spacing_min,
    }
}
