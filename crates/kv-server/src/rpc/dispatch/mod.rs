//! The one dispatcher: from the headers of a call to its end, for every method.
//!
//! ```text
//! path ─▶ row of `grpc_server::methods` ─▶ Call: counted, traced, deadline, metadata, caller, permission
//!    ├─▶ hot: one message for another, in the connection's task
//!    ├─▶ stream: messages both ways, in the connection's task
//!    └─▶ service: tonic's services, by HTTP bodies; hot methods too that only tonic can read
//! ```
//!
//! A method is implemented once: `hot` and `stream` call the functions that the services call.

mod hot; // one message for another
mod stream; // messages both ways

mod bodies; // counts and ends of the bodies of services
mod service; // tonic's services

use std::pin::pin;
use std::sync::Arc;

use api::etcdserverpb::auth_server::AuthServer;
use api::etcdserverpb::cluster_server::ClusterServer;
use api::etcdserverpb::kv_server::KvServer;
use api::etcdserverpb::lease_server::LeaseServer;
use api::etcdserverpb::maintenance_server::MaintenanceServer;
use api::health::health_server::HealthServer;
use api::kvserver::repair_server::RepairServer;
use api::v3electionpb::election_server::ElectionServer;
use api::v3lockpb::lock_server::LockServer;
use api::{CallKind, Error, Method};
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;

use super::guard::{self, Asker};
use super::metadata::KnownFields;
use super::{auth, cluster, concurrency, deadline, health, kv, lease, maintenance, repair};
use crate::member::{LeaseService, Member};
use ::auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::methods::{self, Access, CLUSTER_BYTES_MAX};
use process::shutdown::Stop;
use telemetry::metrics::{CallInProgress, Metrics, SlowCalls};
use telemetry::traces::CallSpan;

/// Answers the calls of one connection. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    origin: Origin,
}

/// What all connections use.
struct Shared {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    slow: SlowCalls,
    leases: LeaseService,
    routes: Routes,
}

impl PerConnection for Dispatcher {
    fn of(&self, origin: &Origin) -> Self {
        Dispatcher { shared: Arc::clone(&self.shared), origin: origin.clone() }
    }
}

/// A call of which only the headers were looked at.
#[derive(Debug)]
pub struct Call {
    method: Method,
    /// When it must have ended, or what is wrong with its timeout.
    deadline: Result<Option<Instant>, Box<Status>>,
    /// Whether this member can satisfy its metadata.
    metadata: Result<(), Error>,
    /// Whether it ends when the leader is lost, if it is a stream.
    needs_leader: bool,
    asker: Asker,
    span: Option<Arc<CallSpan>>,
}

impl Dispatcher {
    pub fn new(member: Arc<Member>, leases: LeaseService, slow: SlowCalls, stop: Stop) -> Dispatcher {
        let (metrics, routes) = (Arc::clone(&member.metrics), routes(&member, &leases, stop));
        let shared = Shared { member, metrics, slow, leases, routes };
        Dispatcher { shared: Arc::new(shared), origin: Origin::default() }
    }

    fn member(&self) -> &Arc<Member> {
        &self.shared.member
    }

    /// The call of `method` with these headers; `metadata` is what is wrong with them. `timeout` is a
    /// `grpc-timeout` that is not among them.
    fn begin(
        &self,
        method: Method,
        headers: &HeaderMap,
        known: &KnownFields<'_>,
        timeout: Option<&[u8]>,
        metadata: Result<(), Error>,
    ) -> Call {
        let member = self.member();
        Call {
            method,
            deadline: deadline::of(known, timeout).map_err(Box::new),
            metadata: metadata.and_then(|()| guard::check_intact(member, method)),
            needs_leader: guard::needs_leader(known),
            asker: Asker::new(member, &self.origin, headers, known),
            span: self.shared.metrics.traces.begin(method, headers),
        }
    }

    /// Counts a call from here on.
    fn count(&self, call: &Call) -> CallInProgress {
        CallInProgress::begin(&self.shared.metrics, call.method, call.span.clone())
    }

    /// What `work` comes to if the caller may make the call, and before its deadline.
    async fn guarded<T>(
        &self,
        call: &Call,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let permitted = pin!(async {
            match methods::of(call.method).access {
                Access::Open | Access::Keys => {} // By the method itself, if at all.
                // In a box, so that the future of a hot call stays small.
                access @ (Access::User | Access::Root) => Box::pin(self.authorize(call, access)).await?,
            }
            work.await
        });
        deadline::within(call.deadline()?, permitted).await
    }

    async fn authorize(&self, call: &Call, access: Access) -> Result<(), Status> {
        let permitted = guard::authorize(self.member(), &call.asker, access).await;
        // The audit log has streams by their messages. One that is refused takes none.
        if let Err(status) = &permitted
            && call.method.kind() == CallKind::BidiStream
            && let Some(audited) = call.asker.audited(self.member(), call.method)
        {
            audited.end(Err(status));
        }
        permitted
    }
}

/// The services of a member.
fn routes(member: &Arc<Member>, leases: &LeaseService, stop: Stop) -> Routes {
    let bytes_max = member.limits.message_bytes_max();
    let of = || Arc::clone(member);
    let waiting = concurrency::WaitingPlaces::new(stop);
    let lease = lease::LeaseCalls { member: of(), leases: leases.clone() };
    let lock = concurrency::Lock::new(of(), waiting.clone());
    let election = concurrency::Election::new(of(), waiting);
    let cluster_bytes_max = bytes_max.min(CLUSTER_BYTES_MAX);
    Routes::new(KvServer::new(kv::Kv(of())).max_decoding_message_size(bytes_max))
        .add_service(
            MaintenanceServer::new(maintenance::Maintenance(of())).max_decoding_message_size(bytes_max),
        )
        .add_service(LeaseServer::new(lease).max_decoding_message_size(bytes_max))
        .add_service(AuthServer::new(auth::AuthCalls { member: of() }).max_decoding_message_size(bytes_max))
        .add_service(
            ClusterServer::new(cluster::ClusterCalls(of())).max_decoding_message_size(cluster_bytes_max),
        )
        .add_service(LockServer::new(lock).max_decoding_message_size(bytes_max))
        .add_service(ElectionServer::new(election).max_decoding_message_size(bytes_max))
        .add_service(RepairServer::new(repair::Repair(of())))
        .add_service(HealthServer::new(health::Health(of())).max_decoding_message_size(bytes_max))
        .prepare()
}

impl Call {
    fn deadline(&self) -> Result<Option<Instant>, Status> {
        self.deadline.as_ref().copied().map_err(|status| (**status).clone())
    }
}
