//! Callers that read a range in pages, through tonic.
//!
//! All pages of a range are read at the revision of the first, from one member. The next range is read from
//! the next member.

use crate::client::admin::{self, Channel};
use crate::client::endpoint::Endpoint;
use crate::client::failure::{Code, Failure};
use crate::run::callers::tasks::{Answered, Caller};
use crate::stats::progress::{Control, Counters};
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::kv_client::KvClient;
use prost::Message;
use std::sync::Arc;

/// One caller. Its ranges follow one another.
pub struct PagesCaller {
    range: RangeRequest,
    /// One per endpoint.
    clients: Vec<KvClient<Channel>>,
    /// The client of the next range.
    cursor: usize,
}

/// Opens `objects` connection objects for so many callers of one range.
pub async fn connect(
    range: &RangeRequest,
    endpoints: &[Endpoint],
    objects: usize,
    callers: usize,
    counters: &Arc<Counters>,
) -> Result<Vec<PagesCaller>, String> {
    let mut opened = Vec::with_capacity(objects);
    for _ in 0..objects {
        let mut clients = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let channel = admin::channel(endpoint, None, Some(counters.clone())).await;
            let channel = channel.map_err(|error| error.to_string())?;
            clients.push(KvClient::new(channel).max_decoding_message_size(usize::MAX));
        }
        opened.push(clients);
    }
    let caller = |number: usize| PagesCaller {
        range: range.clone(),
        clients: opened[number % objects].clone(),
        cursor: number,
    };
    Ok((0..callers).map(caller).collect())
}

impl Caller for PagesCaller {
    async fn call(&mut self, _position: u64) -> Result<Answered, Failure> {
        let place = self.cursor % self.clients.len();
        self.cursor += 1;
        list(&mut self.clients[place], self.range.clone()).await
    }

    async fn settle(&mut self, _: bool, _: &Control) -> bool {
        true
    }

    fn endpoint(&self) -> usize {
        self.cursor.wrapping_sub(1) % self.clients.len()
    }

    async fn close(&mut self) {}
}

/// Reads all pages at the revision of the first.
pub async fn list(client: &mut KvClient<Channel>, mut range: RangeRequest) -> Result<Answered, Failure> {
    let mut body_bytes = 0;
    loop {
        let page = client.range(range.clone()).await;
        let page = page.map_err(|status| Failure::new(Code(status.code() as u16), status.message()))?;
        let page = page.into_inner();
        body_bytes += page.encoded_len() as u64;
        let Some(last) = page.kvs.last().filter(|_| page.more) else {
            return Ok(Answered { body_bytes, retries: 0 });
        };
        range.key = [&last.key[..], b"\0"].concat().into();
        if range.revision == 0 {
            range.revision = page.header.map_or(0, |header| header.revision);
        }
    }
}
