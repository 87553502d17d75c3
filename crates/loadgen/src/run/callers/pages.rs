//! Callers that read a range in pages, through tonic.
//!
//! All pages of a range are read at the revision of the first, from the same member. The next range is read
//! from the next member.

use crate::client::admin::Channel;
use crate::client::failure::CallFailure;
use crate::run::callers::round_robin::RoundRobin;
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::kv_client::KvClient;
use prost::Message;

/// A caller. Its ranges are sequential.
pub struct PagesCaller {
    range: RangeRequest,
    members: RoundRobin,
}

impl PagesCaller {
    pub fn new(range: &RangeRequest, members: RoundRobin) -> Self {
        Self { range: range.clone(), members }
    }
}

impl CallerTask for PagesCaller {
    async fn call(&mut self, _position: u64) -> Result<AnsweredCall, CallFailure> {
        list(&mut self.members.next_kv(), self.range.clone()).await.map(|(answered, _)| answered)
    }

    fn endpoint(&self) -> usize {
        self.members.upcoming()
    }
}

/// Reads all pages at the revision of the first, and returns it.
pub async fn list(
    client: &mut KvClient<Channel>,
    mut range: RangeRequest,
) -> Result<(AnsweredCall, i64), CallFailure> {
    let mut body_bytes = 0;
    loop {
        let page = client.range(range.clone()).await;
        let page = page?.into_inner();
        body_bytes += page.encoded_len() as u64;
        if range.revision == 0 {
            range.revision = page.header.map_or(0, |header| header.revision);
        }
        let Some(last) = page.kvs.last().filter(|_| page.more) else {
            return Ok((AnsweredCall { body_bytes, retries: 0 }, range.revision));
        };
        range.key = [&last.key[..], b"\0"].concat().into();
    }
}
