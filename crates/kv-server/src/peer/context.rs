//! What every part of the peer traffic knows: the members, and the bounds of messages.

use std::sync::Arc;

use crate::member::{Fence, Roster, Standing};
use data_dir::Identity;
use telemetry::metrics::Metrics;
use transport::tls::Dialer;

/// Version of the bytes inside a message: raft-node's encoding.
pub(super) const ENCODING: u32 = 1;
/// Bytes in one batch. Large enough to catch up at the speed of a disk, small enough to be decoded in a
/// moment.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Largest batch taken from a peer: one message may be as large as the log's largest entry and then some.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Bytes in flight on one connection; see `net/http2`.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;

/// The answer to a removed member, in etcd's words. It stops when it receives them.
pub(super) const REMOVED: &str = "the member has been permanently removed from the cluster";
/// The same from a learner, and no reason to stop: the voters may not know it for good yet, and need its
/// vote.
pub(super) const REMOVED_SAYS_A_LEARNER: &str = "the member is removed from the list of this learner";

/// Who we are, who the others are, where to count, and how to reach them.
#[derive(Clone)]
pub struct Context {
    pub identity: Arc<Identity>,
    pub roster: Arc<Roster>,
    pub metrics: Arc<Metrics>,
    pub dialer: Dialer,
    /// Up while the state of this member is known to be corrupt.
    pub fence: Arc<Fence>,
}

impl Context {
    pub(super) fn hello(&self, to: u64) -> api::peer::Hello {
        let Identity { cluster_id, member_id, .. } = *self.identity;
        let peer_urls = self.roster.own_urls().join(",");
        api::peer::Hello { cluster_id, from: member_id, to, encoding: ENCODING, peer_urls }
    }

    /// A member's value in labels of metrics.
    pub(super) fn label(&self, id: u64) -> String {
        match self.roster.standing(id) {
            Standing::Member => format!("{id:x}"),
            Standing::Removed | Standing::Unknown => "unknown".to_owned(),
        }
    }

    /// What is known of the sender `id`. This member does not send to itself.
    pub(super) fn standing(&self, id: u64) -> Standing {
        if id == self.identity.member_id { Standing::Unknown } else { self.roster.standing(id) }
    }
}
