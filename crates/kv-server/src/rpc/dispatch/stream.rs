//! Methods with request and response streams, served inside the connection's task.
//!
//! A stream with `hasleader: true` fails when this member has known no leader for three election timeouts.

use api::{Error, Method};
use http::HeaderMap;
use tonic::Status;

use super::super::guard::KnownFields;
use super::super::{guard, lease, watch};
use super::{Call, Dispatcher};
use grpc_server::http2::{Replies, Requests, StreamMethods};
use grpc_server::methods::{self, Serving, StreamMethod};
use telemetry::metrics::MessageCounter;

/// A call, before its first message.
#[derive(Debug)]
pub struct StreamCall {
    which: StreamMethod,
    call: Call,
    /// Error of a call with compressed messages.
    refusal: Option<Box<Status>>,
}

impl StreamMethods for Dispatcher {
    type Call = StreamCall;

    fn find(&self, path: &str, headers: &HeaderMap) -> Option<StreamCall> {
        let method = Method::of_path(path)?;
        let Serving::Stream(which) = methods::of(method).serving else { return None };
        let known = KnownFields::of(headers);
        let refusal = known.compression().map(|encoding| Box::new(grpc_errors::compressed(encoding)));
        let metadata = guard::check_known(self.member(), &known);
        Some(StreamCall { which, call: self.begin(method, headers, &known, None, metadata), refusal })
    }

    async fn serve(
        &self,
        StreamCall { which, call, refusal }: StreamCall,
        mut requests: Requests,
        mut replies: Replies,
    ) -> Status {
        let mut counted = self.count(&call);
        let messages = MessageCounter::new(&self.shared.metrics, call.method);
        requests.counted_by(messages.clone());
        replies.counted_by(messages);
        let answering = self.stream(which, &call, refusal, requests, replies);
        let status = answering.await.unwrap_or_else(|status| status);
        counted.end(status.code());
        status
    }
}

impl Dispatcher {
    async fn stream(
        &self,
        which: StreamMethod,
        call: &Call,
        refusal: Option<Box<Status>>,
        requests: Requests,
        replies: Replies,
    ) -> Result<Status, Status> {
        call.deadline()?;
        if let Some(refusal) = refusal {
            return Err(*refusal);
        }
        call.metadata.map_err(grpc_errors::refused)?;
        let (member, leases, asker) = (self.member(), &self.shared.leases, &call.asker);
        let serving = async {
            match which {
                StreamMethod::Watch => watch::serve(member, asker, requests, replies).await,
                StreamMethod::LeaseKeepAlive => {
                    lease::keep_alive(member, leases, asker, requests, replies).await
                }
            }
        };
        let lost = async {
            match call.needs_leader {
                true => member.leader_loss.lost().await,
                false => std::future::pending().await,
            }
        };
        let work = async {
            tokio::select! {
                biased;
                () = lost => Err(grpc_errors::refused(Error::NoLeader)),
                () = member.fence.raised() => Err(grpc_errors::refused(Error::Corrupt)),
                status = serving => Ok(status),
            }
        };
        self.guarded(call, work).await
    }
}
