//! Serializable ranges of one key, served without a future or an allocation.
//!
//! One range: the request is decoded in place, one lookup under the lock, one copy of the pair into a buffer
//! of this thread, from where it is copied into the connection's.

use std::cell::RefCell;

use api::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;
use prost::Message;
use state_machine::{get, is_get, validate};

use super::methods::check_range;
use crate::member::Member;
use ::auth::Requester;
use auth::Caller;
use grpc_server::http2::{SendNow, frame_prefix};

/// A larger response has to wait for its connection anyway. Bounds the per-thread buffer.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Per-thread buffers, reused for each response.
#[derive(Default)]
struct Scratch {
    response: RangeResponse,
    frame: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Sends the response of a range that does not have to wait. Returns None if it was not sent: then
/// [`super::methods::range_or_large`] has to serve or reject it.
pub fn range(member: &Member, requester: &Requester, message: &Bytes, send: &mut SendNow<'_>) -> Option<()> {
    let request = RangeRequest::decode(message.clone()).ok()?;
    if !request.serializable || !is_get(&request) || validate::range(&request).is_err() {
        return None;
    }
    let caller = member.auth.caller(&requester.identity).ok()?;
    check_range(member, &caller, &request).ok()?;
    SCRATCH.with_borrow_mut(|Scratch { response, frame }| {
        let framed = frame_of(member, &caller, &request, response, frame);
        // Release the pair, which may pin a block.
        response.kvs.clear();
        let is_sent = framed.is_some() && send(frame);
        is_sent.then(|| member.metrics.keys.ranges.inc()).map(drop)
    })
}

fn frame_of(
    member: &Member,
    caller: &Caller,
    request: &RangeRequest,
    response: &mut RangeResponse,
    frame: &mut Vec<u8>,
) -> Option<()> {
    get(&member.store, request, response).ok()?;
    // The permissions must not have changed since the read.
    caller.check_unchanged(member.auth.table.revision()).ok()?;
    member.fill_header(&mut response.header);
    let bytes = response.encoded_len();
    if bytes > ANSWER_BYTES_MAX {
        return None;
    }
    frame.clear();
    frame.extend_from_slice(&frame_prefix(bytes).ok()?);
    response.encode(frame).ok()
}
