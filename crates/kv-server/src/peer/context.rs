//! What every part of the peer traffic knows: the members, and the bounds of messages.

use std::sync::Arc;

use crate::data_dir::Identity;
use crate::metrics::Metrics;
use crate::tls::Dialer;

/// Version of the bytes inside a message: raft-node's encoding.
pub(super) const ENCODING: u32 = 1;
/// Bytes in one batch. Large enough to catch up at the speed of a disk, small enough to be decoded in a
/// moment.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Largest batch taken from a peer: one message may be as large as the log's largest entry and then some.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Bytes in flight on one connection; see `net/http2`.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;

/// Who we are, who the others are, where to count, and how to reach them.
#[derive(Clone)]
pub struct Context {
    pub identity: Arc<Identity>,
    pub metrics: Arc<Metrics>,
    pub dialer: Dialer,
}

impl Context {
    pub(super) fn hello(&self, to: u64) -> api::peer::Hello {
        let Identity { cluster_id, member_id, .. } = *self.identity;
        api::peer::Hello { cluster_id, from: member_id, to, encoding: ENCODING }
    }

    pub(super) fn knows(&self, id: u64) -> bool {
        id != self.identity.member_id && self.identity.members.iter().any(|member| member.id == id)
    }
}
