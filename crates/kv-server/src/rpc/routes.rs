//! Every call that is not hot, and the hot methods once more for calls that only tonic can read.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use api::etcdserverpb::auth_server::AuthServer;
use api::etcdserverpb::cluster_server::ClusterServer;
use api::etcdserverpb::kv_server::KvServer;
use api::etcdserverpb::lease_server::LeaseServer;
use api::etcdserverpb::maintenance_server::MaintenanceServer;
use api::health::health_server::HealthServer;
use api::kvserver::repair_server::RepairServer;
use api::v3electionpb::election_server::ElectionServer;
use api::v3lockpb::lock_server::LockServer;
use api::{CallKind, Error};
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use super::guard::{self, Asker};
use super::metadata::KnownFields;
use super::{audited, auth, cluster, concurrency, deadline, health, kv, lease, maintenance, methods, repair};
use crate::member::{LeaderLoss, LeaseService, Member};
use ::auth::Origin;
use grpc_errors::RequestForm;
use grpc_server::client_port::PerConnection;
use grpc_server::methods::CLUSTER_BYTES_MAX;
use process::shutdown::Stop;

/// Everything that is not hot, and the hot methods once more for calls that only tonic can read.
#[derive(Clone)]
pub struct Grpc {
    member: Arc<Member>,
    routes: Routes,
    origin: Origin,
}

impl PerConnection for Grpc {
    fn of(&self, origin: &Origin) -> Self {
        Grpc { member: Arc::clone(&self.member), routes: self.routes.clone(), origin: origin.clone() }
    }
}

impl Grpc {
    pub fn new(member: Arc<Member>, leases: LeaseService, stop: Stop) -> Self {
        let bytes_max = member.limits.message_bytes_max();
        let kv = KvServer::new(kv::Kv(Arc::clone(&member))).max_decoding_message_size(bytes_max);
        let maintenance = maintenance::Maintenance(Arc::clone(&member));
        let maintenance = MaintenanceServer::new(maintenance).max_decoding_message_size(bytes_max);
        let lease = LeaseServer::new(lease::LeaseCalls { member: Arc::clone(&member), leases });
        let auth = auth::AuthCalls { member: Arc::clone(&member) };
        let auth = AuthServer::new(auth).max_decoding_message_size(bytes_max);
        let cluster = ClusterServer::new(cluster::ClusterCalls(Arc::clone(&member)));
        let health =
            HealthServer::new(health::Health(Arc::clone(&member))).max_decoding_message_size(bytes_max);
        let waiting = concurrency::WaitingPlaces::new(stop);
        let lock = concurrency::Lock::new(Arc::clone(&member), waiting.clone());
        let lock = LockServer::new(lock).max_decoding_message_size(bytes_max);
        let election = concurrency::Election::new(Arc::clone(&member), waiting);
        let election = ElectionServer::new(election).max_decoding_message_size(bytes_max);
        let routes = Routes::new(kv)
            .add_service(maintenance)
            .add_service(lease.max_decoding_message_size(bytes_max))
            .add_service(auth)
            .add_service(cluster.max_decoding_message_size(bytes_max.min(CLUSTER_BYTES_MAX)))
            .add_service(lock)
            .add_service(election)
            .add_service(RepairServer::new(repair::Repair(Arc::clone(&member))))
            .add_service(health);
        Grpc { member, routes: routes.prepare(), origin: Origin::default() }
    }
}

impl Service<Request<Body>> for Grpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // Nothing is held between calls.
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (method, reading) = match methods::resolve(request.uri().path()) {
            Ok(method) => (method, methods::reading(method)),
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let deadline = match deadline::of(request.headers()) {
            Ok(deadline) => deadline,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let known = KnownFields::of(request.headers());
        let needs_leader = method.kind() != CallKind::Unary && guard::needs_leader(&known);
        let leader_loss = needs_leader.then(|| self.member.leader_loss.clone());
        let asker = Asker::new(&self.member, &self.origin, request.headers(), &known);
        request.extensions_mut().insert(asker.clone());
        let (member, mut routes) = (Arc::clone(&self.member), self.routes.clone());
        let mut audited = None;
        if let Some(call) = asker.audited(&member, method) {
            let (observed, unanswered) = audited::observed(request, call, member.limits.message_bytes_max());
            request = observed;
            audited = Some(unanswered);
        }
        Box::pin(async move {
            let answer = pin!(async {
                guard::check_intact(&member, method).map_err(grpc_errors::refused)?;
                guard::authorize(&member, &asker, grpc_server::methods::of(method).access).await?;
                routes.call(request).await.map_err(|never| match never {})
            });
            let response = match deadline::within(deadline, answer).await {
                Ok(response) => {
                    let response =
                        translated(response.headers(), reading).map_or(response, Status::into_http);
                    response.map(|body| until_leader_is_lost(deadline::limited(body, deadline), leader_loss))
                }
                Err(status) => status.into_http(),
            };
            Ok(match audited {
                None => response,
                Some(unanswered) => unanswered.followed(response),
            })
        })
    }
}

/// The body of a stream that asks for a leader.
fn until_leader_is_lost(body: Body, loss: Option<LeaderLoss>) -> Body {
    let Some(loss) = loss else { return body };
    deadline::ended_by(body, async move {
        loss.lost().await;
        grpc_errors::refused(Error::NoLeader)
    })
}

/// An error that tonic made before a method was reached, in the words of etcd's own server. It stands in the
/// headers, where a call that went well has none.
fn translated(headers: &HeaderMap, reading: RequestForm) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    grpc_errors::as_grpc_go(&status, reading)
}
