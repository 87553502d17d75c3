//! Calls of one member of an etcd cluster.
//!
//! * Each call of a [`Client`] carries the token of its user, and is given up after the time that was set.
//! * Answers and refusals are handed on as the member gave them. Nothing is repeated or asked elsewhere: who
//!   calls knows which member is next, and how long to go on.
//! * Connections are made by who calls, with its own TLS; only plain ones are made here.
//!
//! It must not know certificates, command lines, or anything of a server.

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

/// What a user is known by; a request header.
pub type Token = MetadataValue<Ascii>;

/// A connection, for the stubs of services.
pub type Channel = InterceptedService<transport::Channel, CallHeaders>;

/// What each call carries.
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

/// A connection to one member. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    connection: transport::Channel,
    headers: CallHeaders,
}

impl Client {
    /// Without a token and a deadline.
    pub fn new(connection: transport::Channel) -> Client {
        Client { connection, headers: CallHeaders::default() }
    }

    /// A plain connection. To connect and each call take `within` at most.
    pub async fn connect(url: String, within: Duration) -> Result<Client, transport::Error> {
        let endpoint = Endpoint::from_shared(url)?.connect_timeout(within).timeout(within);
        endpoint.connect().await.map(Client::new)
    }

    /// The same connection, as this user.
    pub fn with_token(mut self, token: Option<Token>) -> Client {
        self.headers.token = token;
        self
    }

    /// The same connection. Each call takes so long at most; `None`: as long as it takes.
    pub fn within(&self, deadline: impl Into<Option<Duration>>) -> Client {
        let headers = CallHeaders { deadline: deadline.into(), ..self.headers.clone() };
        Client { headers, ..self.clone() }
    }

    pub fn channel(&self) -> Channel {
        InterceptedService::new(self.connection.clone(), self.headers.clone())
    }

    /// The token of a user, for later calls.
    pub async fn authenticate(&self, name: &str, password: &str) -> Result<Token, Status> {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let token = self.auth().authenticate(request).await?.into_inner().token;
        token.parse().map_err(|_| Status::internal("the token is no header value"))
    }

    pub async fn status(&self) -> Result<StatusResponse, Status> {
        Ok(self.maintenance().status(StatusRequest {}).await?.into_inner())
    }

    /// All members; `linearizable`: as a majority has them, not only this one.
    pub async fn members(&self, linearizable: bool) -> Result<Vec<Member>, Status> {
        Ok(self.cluster().member_list(MemberListRequest { linearizable }).await?.into_inner().members)
    }
}

macro_rules! services {
    ($($name:ident: $stub:ident,)*) => {
        impl Client {
            $(pub fn $name(&self) -> $stub<Channel> {
                // As etcd's client: what an answer may have is the server's to say.
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

/// The member that this status is of; 0 if it does not say.
pub fn member_id(status: &StatusResponse) -> u64 {
    status.header.as_ref().map_or(0, |header| header.member_id)
}

/// Whether a status is that of the leader.
pub fn leads(status: &StatusResponse) -> bool {
    let id = member_id(status);
    id != 0 && id == status.leader
}
