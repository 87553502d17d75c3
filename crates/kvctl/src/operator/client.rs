//! Requests to a cluster. The given endpoints are tried in order until one is reachable.

use std::error::Error;
use std::time::{Duration, Instant};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, Member, MemberAddRequest, MemberPromoteRequest,
    MemberRemoveRequest, StatusResponse,
};
use api::kvserver::ReseedRequest;
use client::{Client, Token};
use tokio::runtime::Handle;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use config::PortTls;
use transport::tls::{Dialer, TlsError, broken};

/// Timeout for connecting, and for requests that do not wait.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a membership change, which may have to wait for an election.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for the first response of any endpoint. If no endpoint ever responds, URLs or certificates may be
/// wrong.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Prefix of members' error messages.
const OF_MEMBER: &str = "etcdserver: ";
/// Part of the error of a cluster without authentication.
const NOT_ENABLED: &str = "authentication is not enabled";

/// Client of a cluster.
pub struct OperatorClient {
    endpoints: Vec<String>,
    dialer: Dialer,
    user: Option<(String, String)>,
    token: Option<Token>,
    /// Time of the first request.
    asked: Option<Instant>,
    /// True if an endpoint has responded like a member.
    has_answered: bool,
    first_answer_within: Duration,
}

/// Observed state of a cluster.
pub struct ClusterLook {
    pub members: Vec<Member>,
    /// IDs of the reachable members.
    pub answering: Vec<u64>,
    /// ID of the leader; 0 if unknown.
    pub leader: u64,
}

impl OperatorClient {
    /// Creates a client. `tls` contains the files for TLS connections, and defaults to the system's
    /// authorities.
    pub fn new(
        endpoints: Vec<String>,
        tls: &PortTls,
        user: Option<(String, String)>,
    ) -> Result<OperatorClient, TlsError> {
        // A machine without authorities can still use plain connections.
        let is_secure = endpoints.iter().any(|url| url.starts_with("https:") || url.starts_with("unixs:"));
        let dialer = if is_secure { Dialer::to_servers(tls, &Handle::current())? } else { Dialer::default() };
        Ok(OperatorClient {
            endpoints,
            dialer,
            user,
            token: None,
            asked: None,
            has_answered: false,
            first_answer_within: FIRST_RESPONSE_TIMEOUT,
        })
    }

    /// Lists the members, by a linearizable read.
    pub async fn members(&mut self) -> Result<Vec<Member>, Status> {
        self.reached().await?.members(true).await
    }

    /// Returns the members, which of them are reachable, and the leader. Adds all members to the endpoints.
    ///
    /// Errors are the queried endpoint's. A retry uses a different endpoint: a member that has stopped
    /// applying has a leader but cannot serve linearizable reads.
    pub async fn look(&mut self) -> Result<ClusterLook, Status> {
        let members = match self.members().await {
            Ok(members) => members,
            Err(status) => {
                self.turn_away();
                return Err(status);
            }
        };
        self.add_endpoints(&members);
        let (mut answering, mut leader) = (Vec::new(), 0);
        for member in &members {
            if let Some(status) = self.status(member).await {
                answering.push(member.id);
                leader = if status.leader == 0 { leader } else { status.leader };
            }
        }
        Ok(ClusterLook { members, answering, leader })
    }

    /// Adds a learner and returns its ID.
    pub async fn add_learner(&mut self, peer_urls: &[String]) -> Result<u64, Status> {
        let request = MemberAddRequest { peer_ur_ls: peer_urls.to_vec(), is_learner: true };
        let added = self.changing().await?.cluster().member_add(request).await?.into_inner().member;
        added
            .map(|member| member.id)
            .ok_or_else(|| Status::internal("the added member is not in the response"))
    }

    pub async fn promote(&mut self, id: u64) -> Result<(), Status> {
        self.changing().await?.cluster().member_promote(MemberPromoteRequest { id }).await.map(drop)
    }

    pub async fn remove(&mut self, id: u64) -> Result<(), Status> {
        self.changing().await?.cluster().member_remove(MemberRemoveRequest { id }).await.map(drop)
    }

    /// Returns the status of a member, from the first of its client URLs that responds.
    pub async fn status(&mut self, member: &Member) -> Option<StatusResponse> {
        for url in &member.client_ur_ls {
            if let Ok(status) = self.status_at(url).await {
                return Some(status);
            }
        }
        None
    }

    async fn status_at(&mut self, url: &str) -> Result<StatusResponse, Status> {
        let client = self.dial(url).await?;
        match client.status().await {
            // A member added after the token was issued does not know it.
            Err(refused) if refused.code() == Code::Unauthenticated => {
                self.token = None;
                self.logged_in(client.with_token(None)).await?.status().await
            }
            answered => answered,
        }
    }

    /// Lists the active alarms.
    pub async fn alarms(&mut self) -> Result<Vec<AlarmMember>, Status> {
        let request = AlarmRequest { action: AlarmAction::Get as i32, ..AlarmRequest::default() };
        self.alarm(request).await
    }

    /// Clears a member's CORRUPT alarm.
    pub async fn disarm_corrupt(&mut self, member_id: u64) -> Result<(), Status> {
        let (action, alarm) = (AlarmAction::Deactivate as i32, AlarmType::Corrupt as i32);
        self.alarm(AlarmRequest { action, member_id, alarm }).await.map(drop)
    }

    async fn alarm(&mut self, request: AlarmRequest) -> Result<Vec<AlarmMember>, Status> {
        Ok(self.changing().await?.maintenance().alarm(request).await?.into_inner().alarms)
    }

    /// Requests that a member replace its state with the leader's. Returns the last entry of the installed
    /// state, or 0 if it is not installed yet.
    ///
    /// Fails with `FailedPrecondition` if the member has no alarm, else with the error of the last URL, which
    /// may belong to another member.
    pub async fn reseed(&self, member: &Member) -> Result<u64, Status> {
        let mut refused = Status::unavailable("the member has no client URL");
        for url in &member.client_ur_ls {
            let request = ReseedRequest { member_id: member.id };
            let asked = async { self.dial(url).await?.within(CHANGE_TIMEOUT).repair().reseed(request).await };
            match asked.await {
                Ok(answered) => return Ok(answered.get_ref().installed),
                Err(status) if status.code() == Code::FailedPrecondition => return Err(status),
                Err(status) if status.code() == Code::NotFound => {
                    refused = Status::unavailable(status.message()); // The URL may reach the member later.
                }
                Err(status) => refused = status,
            }
        }
        Err(refused)
    }

    /// Moves the URLs of a member to the end of the endpoints.
    pub fn avoid(&mut self, member: &Member) {
        self.endpoints.sort_by_key(|url| member.client_ur_ls.contains(url));
    }

    /// Adds the members' client URLs to the endpoints, because membership may change.
    pub fn add_endpoints(&mut self, members: &[Member]) {
        for url in members.iter().flat_map(|member| &member.client_ur_ls) {
            if !self.endpoints.contains(url) {
                self.endpoints.push(url.clone());
            }
        }
    }

    /// Returns the endpoint that was reached last, or that is tried first.
    pub fn endpoint(&self) -> &str {
        self.endpoints.first().map_or("", String::as_str)
    }

    /// Starts with another endpoint and a new token next time.
    pub fn turn_away(&mut self) {
        self.endpoints.rotate_left(1);
        self.token = None;
    }

    /// Connects to the first endpoint that is reachable and has a leader, and authenticates if there is a
    /// user.
    ///
    /// Fails with errors of authentication, or with `Unavailable` and a reason for each endpoint. The latter
    /// becomes `NotFound` if no endpoint has responded like a member for 30 s, or if all are other kinds of
    /// servers.
    pub async fn reached(&mut self) -> Result<Client, Status> {
        let asked = *self.asked.get_or_insert_with(Instant::now);
        let (mut reasons, mut others) = (Vec::new(), 0);
        for at in 0..self.endpoints.len() {
            let url = self.endpoints[at].clone();
            let reason = match self.ask(&url).await {
                Ok((client, status)) => {
                    if status.leader != 0 {
                        // Try this endpoint first next time.
                        self.endpoints.swap(0, at);
                        return Ok(client);
                    }
                    "no leader".to_owned()
                }
                // Authentication would fail at other members as well.
                Err(status) if is_of_user(&status) => return Err(status),
                Err(status) if status.code() == Code::Unimplemented => {
                    others += 1;
                    "it does not serve etcd's API: use client URLs, not peer URLs".to_owned()
                }
                Err(status) => {
                    status.source().map_or_else(|| status.message().to_owned(), |_| broken(&status))
                }
            };
            reasons.push(format!("{url}: {reason}"));
        }
        // Use a stable order, which `turn_away` does not affect.
        reasons.sort_unstable();
        let (reasons, is_late) = (reasons.join("; "), asked.elapsed() >= self.first_answer_within);
        if !self.has_answered && (is_late || others == self.endpoints.len()) {
            return Err(Status::not_found(format!("no endpoint responded: {reasons}")));
        }
        Err(Status::unavailable(reasons))
    }

    /// Connects, authenticates if there is a user, and returns the member's status.
    async fn ask(&mut self, url: &str) -> Result<(Client, StatusResponse), Status> {
        let client = self.dial(url).await?;
        // Request the status before authenticating, which needs a leader. Some members require a token for
        // it.
        let answered = client.status().await;
        let is_refused = |status: &Status| status.message().starts_with(OF_MEMBER);
        self.has_answered |= answered.as_ref().map_or_else(is_refused, |_| true);
        match answered {
            Ok(status) if status.leader == 0 => Ok((client, status)),
            Err(status) if !is_refused(&status) => Err(status),
            answered => {
                let client = self.logged_in(client).await?;
                let status = if let Ok(status) = answered { status } else { client.status().await? };
                Ok((client, status))
            }
        }
    }

    async fn changing(&mut self) -> Result<Client, Status> {
        Ok(self.reached().await?.within(CHANGE_TIMEOUT))
    }

    async fn logged_in(&mut self, client: Client) -> Result<Client, Status> {
        let (Some((name, password)), None) = (&self.user, &self.token) else { return Ok(client) };
        match client.authenticate(name, password).await {
            Ok(token) => self.token = Some(token),
            // Authentication is disabled: continue without a token, like etcdctl.
            Err(status) if status.message().contains(NOT_ENABLED) => {}
            Err(status) => return Err(status),
        }
        Ok(client.with_token(self.token.clone()))
    }

    async fn dial(&self, url: &str) -> Result<Client, Status> {
        // Requests have a deadline, streams do not.
        let limit = |endpoint: Endpoint| endpoint.connect_timeout(RESPONSE_TIMEOUT);
        let channel = self.dialer.channel_to(url, limit).await.map_err(Status::unavailable)?;
        Ok(Client::new(channel).with_token(self.token.clone()).within(RESPONSE_TIMEOUT))
    }
}

fn is_of_user(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied)
}

/// Reports whether a call may succeed later, because the request itself was valid.
pub fn may_pass(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => true,
        // A learner that is not in sync, or a server waiting for a membership change to settle.
        Code::FailedPrecondition => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// An HTTP/1 server that keeps connections open.
    async fn web_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _read = stream.read(&mut [0; 256]).await;
                let _sent = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                open.push(stream);
            }
        });
        address
    }

    #[tokio::test]
    async fn what_has_never_answered_is_not_asked_for_long() {
        let web = web_server().await;
        let (plain, secure) = (format!("http://{web}"), format!("https://{web}"));
        for (url, reason) in [
            ("http://127.0.0.1:1", "Connection refused"),
            (&plain, "frame with invalid size"),
            (&secure, "the server does not use TLS"),
        ] {
            let endpoints = vec![url.to_owned(), "http://127.0.0.1:2".to_owned()];
            let tls = PortTls { is_self_signed: true, ..PortTls::default() };
            let mut client = OperatorClient::new(endpoints, &tls, None).unwrap();
            client.first_answer_within = Duration::from_millis(100);
            let refused = client.reached().await.err().unwrap();
            assert!(may_pass(&refused), "{refused}");
            tokio::time::sleep(client.first_answer_within).await;
            let refused = client.reached().await.err().unwrap();
            assert!(!may_pass(&refused) && refused.code() == Code::NotFound, "{refused}");
            for part in ["no endpoint responded", url, reason, "http://127.0.0.1:2: "] {
                assert!(refused.message().contains(part), "{part}: {refused}");
            }
            client.has_answered = true;
            assert!(may_pass(&client.reached().await.err().unwrap()), "{url}");
        }
    }
}
