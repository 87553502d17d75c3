//! The methods whose requests and answers are streams, served inside the connection's task.
//!
//! What they have in common is here: the deadline, the client's metadata, and the loss of the leader. A
//! stream with `hasleader: true` ends when this member has known no leader for three election timeouts.

use std::pin::pin;
use std::sync::Arc;

use api::{Error, Method};
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

use super::guard::Asker;
use super::metadata::KnownFields;
use super::{deadline, guard, lease, watch};
use crate::member::{LeaseService, Member};
use auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::{Replies, Requests, StreamMethods};
use grpc_server::methods::{self, Access, Serving, StreamMethod};

/// Watch and LeaseKeepAlive. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    member: Arc<Member>,
    leases: LeaseService,
    origin: Origin,
}

impl PerConnection for Streams {
    fn of(&self, origin: &Origin) -> Self {
        Streams { member: Arc::clone(&self.member), leases: self.leases.clone(), origin: origin.clone() }
    }
}

impl Streams {
    pub fn new(member: Arc<Member>, leases: LeaseService) -> Self {
        Streams { member, leases, origin: Origin::default() }
    }
}

/// One call, before its first message.
#[derive(Debug)]
pub struct StreamCall {
    method: StreamMethod,
    /// What its headers ask for, or why it is refused.
    terms: Result<Terms, Box<Status>>,
    asker: Asker,
    /// Who may make it.
    access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Terms {
    deadline: Option<Instant>,
    needs_leader: bool,
}

impl Terms {
    fn of(member: &Member, known: &KnownFields<'_>) -> Result<Terms, Status> {
        let deadline = deadline::of_field(known.timeout)?;
        if let Some(encoding) = known.encoding.filter(|encoding| *encoding != "identity") {
            return Err(grpc_errors::compressed(encoding.to_str().unwrap_or_default()));
        }
        guard::check_known(member, known).map_err(grpc_errors::refused)?;
        Ok(Terms { deadline, needs_leader: guard::needs_leader(known) })
    }
}

impl StreamMethods for Streams {
    type Call = StreamCall;

    fn find(&self, path: &str, headers: &HeaderMap) -> Option<StreamCall> {
        let called = Method::of_path(path)?;
        let row = methods::of(called);
        let Serving::Stream(method) = row.serving else { return None };
        let known = KnownFields::of(headers);
        let asker = Asker::new(&self.member, &self.origin, headers, &known);
        let terms = Terms::of(&self.member, &known).map_err(Box::new);
        Some(StreamCall { method, terms, asker, access: row.access })
    }

    async fn serve(&self, call: StreamCall, requests: Requests, replies: Replies) -> Status {
        let terms = match call.terms {
            Ok(terms) => terms,
            Err(status) => return *status,
        };
        let asker = call.asker;
        let serving = pin!(async {
            let lost = async {
                match terms.needs_leader {
                    true => self.member.leader_loss.lost().await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = lost => Err(grpc_errors::refused(Error::NoLeader)),
                () = self.member.fence.raised() => Err(grpc_errors::refused(Error::Corrupt)),
                status = self.method(call.method, call.access, &asker, (requests, replies)) => Ok(status),
            }
        });
        deadline::within(terms.deadline, serving).await.unwrap_or_else(|status| status)
    }
}

fn of_stream(method: StreamMethod) -> Method {
    match method {
        StreamMethod::Watch => Method::Watch,
        StreamMethod::LeaseKeepAlive => Method::LeaseKeepAlive,
    }
}

impl Streams {
    async fn method(
        &self,
        method: StreamMethod,
        access: Access,
        asker: &Asker,
        (requests, replies): (Requests, Replies),
    ) -> Status {
        if let Err(status) = guard::authorize(&self.member, asker, access).await {
            if let Some(call) = asker.audited(&self.member, of_stream(method)) {
                call.end(Err(&status));
            }
            return status;
        }
        match method {
            StreamMethod::Watch => watch::serve(&self.member, asker, requests, replies).await,
            StreamMethod::LeaseKeepAlive => {
                lease::keep_alive(&self.member, &self.leases, asker, requests, replies).await
            }
        }
    }
}
