//! The connections of a caller, one per endpoint, used round-robin.

use crate::client::admin::{self, Channel};
use crate::client::endpoint::Endpoint;
use crate::stats::progress::WorkerCounters;
use api::etcdserverpb::kv_client::KvClient;
use std::sync::Arc;

/// Channels of all endpoints, used round-robin by operation.
pub struct RoundRobin {
    channels: Vec<Channel>,
    cursor: usize,
}

impl RoundRobin {
    /// Opens `objects` connection objects, shared by `callers` callers. Each caller starts at another
    /// endpoint.
    pub async fn open(
        endpoints: &[Endpoint],
        objects: usize,
        callers: usize,
        counters: &Arc<WorkerCounters>,
    ) -> Result<Vec<RoundRobin>, String> {
        let mut opened = Vec::with_capacity(objects);
        for _ in 0..objects {
            let mut channels = Vec::with_capacity(endpoints.len());
            for endpoint in endpoints {
                let client = admin::connect(endpoint, None, Some(counters.clone())).await;
                channels.push(client.map_err(|error| error.to_string())?.channel());
            }
            opened.push(channels);
        }
        let of = |caller: usize| RoundRobin { channels: opened[caller % objects].clone(), cursor: caller };
        Ok((0..callers).map(of).collect())
    }

    pub fn next(&mut self) -> Channel {
        let channel = self.channels[self.cursor % self.channels.len()].clone();
        self.cursor += 1;
        channel
    }

    pub fn next_kv(&mut self) -> KvClient<Channel> {
        kv(self.next())
    }

    pub fn first(&self) -> &Channel {
        &self.channels[0]
    }

    /// Returns the endpoint index of the next operation.
    pub fn upcoming(&self) -> usize {
        self.cursor % self.channels.len()
    }
}

/// Returns a client that accepts responses of any size.
pub fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}
