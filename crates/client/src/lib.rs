//! Client of a single member of an etcd cluster.
//!
//! * Each call of a [`Client`] carries its user's token and fails once the configured timeout has
//!   passed.
//! * Responses and errors are returned unchanged. Retries, and the choice of the next member, are up to
//!   the caller.
//! * The caller makes connections, with its own TLS; this crate makes plain ones only.
//!
//! Must not depend on certificates, command lines or server code.

use std::time::Duration;

use api::etcdserverpb::auth_client::AuthClient;
use api::etcdserverpb::cluster_client::ClusterClient;
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::watch_client::WatchClient;
use api::etcdserverpb::{AuthenticateRequest, Member, MemberListRequest, StatusRequest, StatusResponse};
use api::health::health_client::HealthClient;
use api::kvserver::repair_client::RepairClient;
use api::v3electionpb::election_client::ElectionClient;
use api::v3lockpb::lock_client::LockClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{self, Endpoint};
use tonic::{Request, Status};

/// Token of an authenticated user, sent as a request header.
pub type Token = MetadataValue<Ascii>;

/// Channel for the service stubs.
pub type Channel = InterceptedService<transport::Channel, CallHeaders>;

/// Headers added to each call.
#[derive(Clone, Default)]
pub struct CallHeaders {
    token: Option<Token>,
    deadline: Option<Duration>,
}

impl Interceptor for CallHeaders {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        Ok(request)
    }
}

/// Connection to one member. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    connection: transport::Channel,
    headers: CallHeaders,
}

impl Client {
    /// Creates a client without a token or deadline.
    pub fn new(connection: transport::Channel) -> Client {
        Client { connection, headers: CallHeaders::default() }
    }

    /// Opens a plaintext connection. `within` limits both connecting and each call.
    pub async fn connect(url: String, within: Duration) -> Result<Client, transport::Error> {
        let endpoint = Endpoint::from_shared(url)?.connect_timeout(within).timeout(within);
        endpoint.connect().await.map(Client::new)
    }

    /// Returns a client for the same connection with the given token.
    pub fn with_token(mut self, token: Option<Token>) -> Client {
        self.headers.token = token;
        self
    }

    /// Returns a client for the same connection with a timeout per call; `None` disables it.
    pub fn within(&self, deadline: impl Into<Option<Duration>>) -> Client {
        let headers = CallHeaders { deadline: deadline.into(), ..self.headers.clone() };
        Client { headers, ..self.clone() }
    }

    pub fn channel(&self) -> Channel {
        InterceptedService::new(self.connection.clone(), self.headers.clone())
    }

    /// Authenticates a user and returns the token for later calls.
    pub async fn authenticate(&self, name: &str, password: &str) -> Result<Token, Status> {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let token = self.auth().authenticate(request).await?.into_inner().token;
        token.parse().map_err(|_| Status::internal("the token is not a valid header value"))
    }

    pub async fn status(&self) -> Result<StatusResponse, Status> {
        Ok(self.maintenance().status(StatusRequest {}).await?.into_inner())
    }

    /// Lists the members. A `linearizable` list is confirmed by a majority; otherwise it is this member's
    /// view.
    pub async fn members(&self, linearizable: bool) -> Result<Vec<Member>, Status> {
        Ok(self.cluster().member_list(MemberListRequest { linearizable }).await?.into_inner().members)
    }
}

macro_rules! services {
    ($($name:ident: $stub:ident,)*) => {
        impl Client {
            $(pub fn $name(&self) -> $stub<Channel> {
                // Like etcd's client, leave the limit of response sizes to the server.
                $stub::new(self.channel()).max_decoding_message_size(usize::MAX)
            })*
        }
    };
}

services! {
    auth: AuthClient,
    cluster: ClusterClient,
    election: ElectionClient,
    health: HealthClient,
    kv: KvClient,
    lease: LeaseClient,
    lock: LockClient,
    maintenance: MaintenanceClient,
    repair: RepairClient,
    watch: WatchClient,
}

/// Returns the id of the member that sent the status, or 0 if it is missing.
pub fn member_id(status: &StatusResponse) -> u64 {
    status.header.as_ref().map_or(0, |header| header.member_id)
}

/// Reports whether the status is the leader's.
pub fn leads(status: &StatusResponse) -> bool {
    let id = member_id(status);
    id != 0 && id == status.leader
}
