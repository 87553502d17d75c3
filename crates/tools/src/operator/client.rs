//! Calls of a cluster: at the endpoints that were given, one after another, until one of them is reached.

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

/// For a connection, and for the answer of a member that has nothing to wait for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// For a change of the members: a leader may have to be elected first.
const CHANGE_WITHIN: Duration = Duration::from_secs(20);

/// For the first answer of any endpoint: what has never answered may be mistyped, or not be trusted.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Begins the errors of members.
const OF_MEMBER: &str = "etcdserver: ";
/// In the error of a cluster that does not check users.
const NOT_ENABLED: &str = "authentication is not enabled";

/// How the members are reached.
pub struct OperatorClient {
    endpoints: Vec<String>,
    dialer: Dialer,
    user: Option<(String, String)>,
    token: Option<Token>,
    /// When the first endpoint was asked.
    asked: Option<Instant>,
    /// An endpoint has answered as a member does.
    has_answered: bool,
    first_answer_within: Duration,
}

/// What the cluster looks like.
pub struct ClusterLook {
    pub members: Vec<Member>,
    /// Members that answer.
    pub answering: Vec<u64>,
    /// 0 if none is known.
    pub leader: u64,
}

impl OperatorClient {
    /// `tls`: files of the connections inside TLS. The system's authorities, if it names none.
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
            first_answer_within: FIRST_ANSWER_WITHIN,
        })
    }

    /// Linearizable.
    pub async fn members(&mut self) -> Result<Vec<Member>, Status> {
        self.reached().await?.members(true).await
    }

    /// The members, which of them answer, and the leader. The client knows them all from now on.
    ///
    /// Errors: those of the endpoint that was asked. The next look begins with another one: a member that
    /// applies nothing has a leader, and answers no linearizable read.
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

    /// Adds a learner. Returns its id.
    pub async fn add_learner(&mut self, peer_urls: &[String]) -> Result<u64, Status> {
        let request = MemberAddRequest { peer_ur_ls: peer_urls.to_vec(), is_learner: true };
        let added = self.changing().await?.cluster().member_add(request).await?.into_inner().member;
        added.map(|member| member.id).ok_or_else(|| Status::internal("the added member is not in the answer"))
    }

    pub async fn promote(&mut self, id: u64) -> Result<(), Status> {
        self.changing().await?.cluster().member_promote(MemberPromoteRequest { id }).await.map(drop)
    }

    pub async fn remove(&mut self, id: u64) -> Result<(), Status> {
        self.changing().await?.cluster().member_remove(MemberRemoveRequest { id }).await.map(drop)
    }

    /// What a member says of itself, at the first of its client URLs that answers.
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
            // A member that was added after the token was given does not know it.
            Err(refused) if refused.code() == Code::Unauthenticated => {
                self.token = None;
                self.logged_in(client.with_token(None)).await?.status().await
            }
            answered => answered,
        }
    }

    /// All active alarms.
    pub async fn alarms(&mut self) -> Result<Vec<AlarmMember>, Status> {
        let request = AlarmRequest { action: AlarmAction::Get as i32, ..AlarmRequest::default() };
        self.alarm(request).await
    }

    /// Clears the alarm CORRUPT of a member.
    pub async fn disarm_corrupt(&mut self, member_id: u64) -> Result<(), Status> {
        let (action, alarm) = (AlarmAction::Deactivate as i32, AlarmType::Corrupt as i32);
        self.alarm(AlarmRequest { action, member_id, alarm }).await.map(drop)
    }

    async fn alarm(&mut self, request: AlarmRequest) -> Result<Vec<AlarmMember>, Status> {
        Ok(self.changing().await?.maintenance().alarm(request).await?.into_inner().alarms)
    }

    /// Asks a member to take over the leader's state. Returns the entry up to which it has; 0: not yet.
    ///
    /// Errors: `FailedPrecondition` of the member that no alarm names; else that of the last URL, which may
    /// lead to another member.
    pub async fn reseed(&self, member: &Member) -> Result<u64, Status> {
        let mut refused = Status::unavailable("the member has no client URL");
        for url in &member.client_ur_ls {
            let request = ReseedRequest { member_id: member.id };
            let asked = async { self.dial(url).await?.within(CHANGE_WITHIN).repair().reseed(request).await };
            match asked.await {
                Ok(answered) => return Ok(answered.get_ref().installed),
                Err(status) if status.code() == Code::FailedPrecondition => return Err(status),
                Err(status) if status.code() == Code::NotFound => {
                    refused = Status::unavailable(status.message()); // It may lead to the member later.
                }
                Err(status) => refused = status,
            }
        }
        Err(refused)
    }

    /// Tries the URLs of a member last from now on.
    pub fn avoid(&mut self, member: &Member) {
        self.endpoints.sort_by_key(|url| member.client_ur_ls.contains(url));
    }

    /// Other ways into the cluster than those that were given: members come and go.
    pub fn add_endpoints(&mut self, members: &[Member]) {
        for url in members.iter().flat_map(|member| &member.client_ur_ls) {
            if !self.endpoints.contains(url) {
                self.endpoints.push(url.clone());
            }
        }
    }

    /// The endpoint that was reached last, or that is tried first.
    pub fn endpoint(&self) -> &str {
        self.endpoints.first().map_or("", String::as_str)
    }

    /// Begins with another endpoint the next time, and with another token.
    pub fn turn_away(&mut self) {
        self.endpoints.rotate_left(1);
        self.token = None;
    }

    /// A connection to the first endpoint that takes one and has a leader, with a token if there is a user.
    ///
    /// Errors: what members say of the user. `Unavailable` with a reason for each endpoint; `NotFound` with
    /// the same, if no endpoint has answered as a member for 30 s, or if all are another kind of server.
    pub async fn reached(&mut self) -> Result<Client, Status> {
        let asked = *self.asked.get_or_insert_with(Instant::now);
        let (mut reasons, mut others) = (Vec::new(), 0);
        for at in 0..self.endpoints.len() {
            let url = self.endpoints[at].clone();
            let reason = match self.ask(&url).await {
                Ok((client, status)) => {
                    if status.leader != 0 {
                        // Tried first the next time.
                        self.endpoints.swap(0, at);
                        return Ok(client);
                    }
                    "no leader".to_owned()
                }
                // Another member would say the same of the user.
                Err(status) if is_of_user(&status) => return Err(status),
                Err(status) if status.code() == Code::Unimplemented => {
                    others += 1;
                    "it does not serve etcd's API: give URLs of clients, not those of peers".to_owned()
                }
                Err(status) => {
                    status.source().map_or_else(|| status.message().to_owned(), |_| broken(&status))
                }
            };
            reasons.push(format!("{url}: {reason}"));
        }
        // In the same order each time, also after `turn_away`.
        reasons.sort_unstable();
        let (reasons, is_late) = (reasons.join("; "), asked.elapsed() >= self.first_answer_within);
        if !self.has_answered && (is_late || others == self.endpoints.len()) {
            return Err(Status::not_found(format!("no member has answered at any endpoint: {reasons}")));
        }
        Err(Status::unavailable(reasons))
    }

    /// A connection, with a token if there is a user, and what the member says of itself.
    async fn ask(&mut self, url: &str) -> Result<(Client, StatusResponse), Status> {
        let client = self.dial(url).await?;
        // Before the login, which needs a leader. A member may want the login for it.
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
        Ok(self.reached().await?.within(CHANGE_WITHIN))
    }

    async fn logged_in(&mut self, client: Client) -> Result<Client, Status> {
        let (Some((name, password)), None) = (&self.user, &self.token) else { return Ok(client) };
        match client.authenticate(name, password).await {
            Ok(token) => self.token = Some(token),
            // Users are not checked: as etcdctl, go on without a token.
            Err(status) if status.message().contains(NOT_ENABLED) => {}
            Err(status) => return Err(status),
        }
        Ok(client.with_token(self.token.clone()))
    }

    async fn dial(&self, url: &str) -> Result<Client, Status> {
        // Each request has a deadline; streams have none.
        let limit = |endpoint: Endpoint| endpoint.connect_timeout(ANSWER_WITHIN);
        let channel = self.dialer.channel_to(url, limit).await.map_err(Status::unavailable)?;
        Ok(Client::new(channel).with_token(self.token.clone()).within(ANSWER_WITHIN))
    }
}

/// Whether a call was refused because of its user, as etcd refuses it.
fn is_of_user(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied)
}

/// Whether a call may succeed later: nothing was wrong with the request.
pub fn may_pass(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => true,
        // A learner that is not in sync, and servers that wait until a change has settled.
        Code::FailedPrecondition => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server of HTTP/1 alone, which keeps connections open.
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
            (&secure, "the other side does not speak TLS"),
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
            for part in ["no member has answered", url, reason, "http://127.0.0.1:2: "] {
                assert!(refused.message().contains(part), "{part}: {refused}");
            }
            client.has_answered = true;
            assert!(may_pass(&client.reached().await.err().unwrap()), "{url}");
        }
    }
}
