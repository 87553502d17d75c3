//! The face that Raft sees: a queue per peer and lane.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use mvcc::Applied;
use raft_node::{Lane, SnapshotOffer, SnapshotOutcome, Transport};
use tokio::sync::Notify;

use super::context::Context;
use super::inbox::Inbox;
use super::link::{Link, Route};
use super::queue::{Pushed, Queue};
use super::sending::Senders;
use crate::member::Checkpoints;
use crate::metrics::To;
use crate::process::shutdown::Stop;

/// Thousands of heartbeats and votes; more than that waits only when the peer has stopped listening.
const URGENT_BYTES_MAX: usize = 1 << 20;
/// About as many entries as Raft keeps in flight to one peer.
const BULK_BYTES_MAX: usize = 32 << 20;

/// The ways to all other members.
pub struct Peers {
    context: Context,
    lanes: HashMap<u64, Lanes>,
    senders: Senders,
    /// Raft starts with its transport in hand, so it comes to know us before we know it.
    connected: OnceLock<Connected>,
}

/// What is known once Raft runs.
struct Connected {
    inbox: Arc<dyn Inbox>,
    stop: Stop,
}

struct Lanes {
    urgent: Arc<Queue>,
    bulk: Arc<Queue>,
    urls: Vec<String>,
    /// The peer was heard: dial now rather than later.
    heard: Arc<Notify>,
}

impl Peers {
    pub fn new(context: Context, checkpoints: Checkpoints) -> Peers {
        let own = context.identity.member_id;
        let others = context.identity.members.iter().filter(|member| member.id != own);
        let lanes = others
            .map(|member| {
                let lanes = Lanes {
                    urgent: Arc::new(Queue::new(URGENT_BYTES_MAX)),
                    bulk: Arc::new(Queue::new(BULK_BYTES_MAX)),
                    urls: member.peer_urls.clone(),
                    heard: Arc::new(Notify::new()),
                };
                (member.id, lanes)
            })
            .collect();
        let senders = Senders::new(context.clone(), checkpoints);
        Peers { context, lanes, senders, connected: OnceLock::new() }
    }

    /// Starts dialling. Raft is reported to from now on. To be called once, inside the runtime.
    pub fn connect(&self, inbox: Arc<dyn Inbox>, stop: &Stop) {
        let connected = Connected { inbox: Arc::clone(&inbox), stop: stop.clone() };
        if self.connected.set(connected).is_err() {
            panic!("the links of a member are started once");
        }
        for (id, lanes) in &self.lanes {
            for (lane, queue) in [(Lane::Urgent, &lanes.urgent), (Lane::Bulk, &lanes.bulk)] {
                let route = Route { to: *id, lane, urls: lanes.urls.clone() };
                let (queue, heard) = (Arc::clone(queue), Arc::clone(&lanes.heard));
                let link = Link::new(self.context.clone(), route, queue, Arc::clone(&inbox));
                tokio::spawn(link.run(heard, stop.clone()));
            }
        }
    }

    /// The peer opened a stream to us, so it can be dialled.
    pub(super) fn heard(&self, from: u64) {
        if let Some(lanes) = self.lanes.get(&from) {
            lanes.heard.notify_waiters();
        }
    }

    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Transport for Peers {
    fn send(&self, to: u64, lane: Lane, message: Bytes) {
        let Some(lanes) = self.lanes.get(&to) else { return };
        let queue = match lane {
            Lane::Urgent => &lanes.urgent,
            Lane::Bulk => &lanes.bulk,
        };
        if queue.push(message) == Pushed::Full {
            self.context.metrics.peers.send_failures.get_or_create(&To::member(to)).inc();
            if let Some(connected) = self.connected.get() {
                connected.inbox.report_unreachable(to);
            }
        }
    }

    fn send_snapshot(&self, offer: SnapshotOffer) {
        // Before that there is no Raft to report to, and a leader that was just elected offers again.
        let Some(Connected { inbox, stop }) = self.connected.get() else { return };
        let to = offer.to;
        let Some(lanes) = self.lanes.get(&to) else {
            return inbox.report_snapshot(to, SnapshotOutcome::Failed);
        };
        let message = move |applied: Applied| offer.message(applied.index, applied.term);
        self.senders.send(to, lanes.urls.clone(), Box::new(message), inbox, stop);
    }
}
