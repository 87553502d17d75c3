//! Calls with a stream of requests or responses.
//!
//! A stream with `hasleader: true` fails when this member has known no leader for three election timeouts.

use std::future::poll_fn;
use std::pin::pin;
use std::task::ready;

use api::etcdserverpb::kv_server::Kv as _;
use api::etcdserverpb::maintenance_server::Maintenance as _;
use api::health::health_server::Health as _;
use api::v3electionpb::election_server::Election as _;
use api::{Error, Method};
use bytes::Bytes;
use futures_util::future::OptionFuture;
use futures_util::stream::{Stream, StreamExt};
use grpc_errors::RequestForm;
use grpc_server::http2::{Replies, Requests, StreamGone, framed};
use prost::Message;
use tonic::{Code, Request, Response, Status};

use super::super::health::Health;
use super::super::maintenance::Maintenance;
use super::super::{lease, watch};
use super::{Call, Dispatcher, decoded, revision_in};
use crate::audit::AuditedCall;
use crate::member::LeaderLoss;
use crate::methods::{self, IntactRule};

impl Dispatcher {
    /// Serves a call until it completes, fails, or has to end early. A call with one request is audited with
    /// its first response, or with its status.
    pub(super) async fn streamed(&self, call: &Call, requests: Requests, replies: Replies) -> Status {
        let mut audited = None;
        let done = self.served_to_its_end(call, requests, replies, &mut audited).await;
        if let Some(line) = audited {
            line.end(done.as_ref().map(|()| None));
        }
        done.map_or_else(|status| status, |()| Status::new(Code::Ok, ""))
    }

    async fn served_to_its_end(
        &self,
        call: &Call,
        requests: Requests,
        replies: Replies,
        audited: &mut Option<Box<AuditedCall>>,
    ) -> Result<(), Status> {
        self.check(call).map_err(grpc_errors::refused)?;
        let member = self.member();
        let loss = call.metadata.needs_leader.then(|| member.leader_loss.clone());
        let reads_state = methods::of(call.method).state == IntactRule::Intact;
        // Created now, because the fence may be lowered again before it is polled.
        let raised = reads_state.then(|| member.fence.raised());
        let work = pin!(async {
            tokio::select! {
                biased;
                status = early(loss, raised) => Err(status),
                done = self.served_stream(call, requests, replies, audited) => done,
            }
        });
        self.guarded(call, work).await
    }

    async fn served_stream(
        &self,
        call: &Call,
        requests: Requests,
        replies: Replies,
        audited: &mut Option<Box<AuditedCall>>,
    ) -> Result<(), Status> {
        let (member, requester) = (self.member(), &call.requester);
        match call.method {
            Method::Watch => completed(watch::serve(member, requester, requests, replies).await),
            Method::LeaseKeepAlive => {
                let leases = &self.shared.leases;
                completed(lease::keep_alive(member, leases, requester, requests, replies).await)
            }
            // Boxed to keep the future of an idle watch stream small.
            _ => Box::pin(self.responses(call, requests, replies, audited)).await,
        }
    }

    /// Serves a call with one request and a stream of responses.
    async fn responses(
        &self,
        call: &Call,
        mut requests: Requests,
        mut replies: Replies,
        audited: &mut Option<Box<AuditedCall>>,
    ) -> Result<(), Status> {
        let message = requests.only().await?;
        *audited = self.audited(call, &message);
        tokio::select! {
            biased;
            status = requests.excess() => Err(status),
            done = self.send_responses(call, message, &mut replies, audited) => done,
        }
    }

    /// Decodes the request, calls the method of its service, and sends the responses.
    async fn send_responses(
        &self,
        call: &Call,
        message: Bytes,
        replies: &mut Replies,
        audited: &mut Option<Box<AuditedCall>>,
    ) -> Result<(), Status> {
        let room = replies.for_parts();
        macro_rules! responses_of {
            ($service:expr, $method:ident) => {{
                let service = $service;
                let request = decoded(message, RequestForm::Stream)?;
                let response = service.$method(Request::new(request)).await?;
                send(response, replies, audited).await
            }};
        }
        match call.method {
            Method::KvRangeStream => responses_of!(self.key_space(call, room), range_stream),
            Method::MaintenanceSnapshot => responses_of!(Maintenance(self.served(call, room)), snapshot),
            Method::ElectionObserve => responses_of!(self.elections(call, room), observe),
            Method::HealthWatch => responses_of!(Health, watch),
            other => unreachable!("{} has no stream of responses", other.path()),
        }
    }
}

/// Returns whether a stream with this status has completed.
fn completed(status: Status) -> Result<(), Status> {
    if status.code() == Code::Ok { Ok(()) } else { Err(status) }
}

/// Returns the next message. Polls for it only while the client takes responses: until then, a message that
/// is being read keeps its admitted memory, which bounds the messages of all calls.
async fn next_if_ready<S: Stream + Unpin>(messages: &mut S, replies: &Replies) -> Option<S::Item> {
    let mut ready = pin!(replies.ready());
    poll_fn(|context| {
        ready!(ready.as_mut().poll(context));
        ready.set(replies.ready());
        messages.poll_next_unpin(context)
    })
    .await
}

/// Sends each message when it is available, at the client's pace.
async fn send<T: Message>(
    response: Response<impl Stream<Item = Result<T, Status>> + Unpin>,
    replies: &mut Replies,
    audited: &mut Option<Box<AuditedCall>>,
) -> Result<(), Status> {
    let gone = |StreamGone| grpc_errors::cancelled();
    // The extensions hold resources of the stream, such as admitted memory, until it was sent.
    let (_, mut messages, held) = response.into_parts();
    replies.open().map_err(gone)?;
    loop {
        // A response with admitted memory is not delayed: other calls wait for that memory.
        let next =
            if held.is_empty() { next_if_ready(&mut messages, replies).await } else { messages.next().await };
        let Some(message) = next else { return Ok(()) };
        let frame = framed(&message?)?;
        if let Some(line) = audited.take() {
            line.end(Ok(revision_in(&frame)));
        }
        replies.send_in_time(frame).await.map_err(gone)?;
    }
}

/// Returns the status that ends a stream early: the leader is lost, or the state was found to be corrupt.
async fn early(loss: Option<LeaderLoss>, raised: Option<impl Future<Output = ()>>) -> Status {
    // Absent futures never complete.
    tokio::select! {
        biased;
        Some(()) = OptionFuture::from(loss.as_ref().map(LeaderLoss::lost)) => {
            grpc_errors::refused(Error::NoLeader)
        }
        Some(()) = OptionFuture::from(raised) => grpc_errors::refused(Error::Corrupt),
        else => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Fence;
    use api::CallKind;
    use futures_util::FutureExt;

    #[test]
    fn an_answer_ends_that_was_not_looked_at_while_its_member_was_fenced() {
        let fence = Fence::default();
        let mut end = Box::pin(early(None, Some(fence.raised())));
        fence.set(true);
        fence.set(false);
        assert_eq!(end.as_mut().now_or_never().map(|status| status.code()), Some(Code::DataLoss));
        assert!(Box::pin(early(None, Some(fence.raised()))).now_or_never().is_none());
    }

    #[test]
    fn every_stream_has_an_arm() {
        let streams = Method::ALL.iter().filter(|method| method.kind() != CallKind::Unary);
        let names: Vec<&str> = streams.map(|method| method.name()).collect();
        assert_eq!(names, ["RangeStream", "Watch", "LeaseKeepAlive", "Snapshot", "Watch", "Observe"]);
    }
}
