//! Raft's transport: a queue per peer and lane.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::peer::{ChangesDigestRequest, Hello, ProgressRequest, ProgressResponse};
use base::Addresses;
use bytes::Bytes;
use mvcc::RecountSpan;
use parking_lot::{Mutex, RwLock};
use raft_node::{Inbox, Lane, LogIndex, Progress, SnapshotOffer, SnapshotOutcome, Transport};
use state_machine::CommandLevel;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::context::Context;
use super::introduction::{Introductions, Ticket, claimed, holds_all, listed, vouches};
use super::link::{
    LaneQueue, Link, PeerConnection, PushResult, REQUEST_TIMEOUT, Route, SharedActivity, answer_of,
    answers_as, dial, running_cluster,
};
use super::questions;
use super::sending::Senders;
use crate::member::{
    AnnouncedMembers, AskedDigest, AskedFigures, AskedHash, AskedLevels, AskedRecount, Checkpoints, Figures,
    FiguresSource, ProgressAnswer,
};
use crate::member::{Reach, Standing};
use data_dir::bootstrap::RunningCluster;
use data_dir::{FirstMember, Identity};
use process::shutdown::{self, Stop, Stopper};
use telemetry::metrics::To;

/// Capacity for thousands of heartbeats and votes, exceeded only if the peer has stopped reading.
const URGENT_BYTES_MAX: usize = 1 << 20;
/// Capacity for about as many entries as Raft keeps in flight to one peer.
const BULK_BYTES_MAX: usize = 32 << 20;
/// Minimum interval between two checks of the same claim. An earlier hello is skipped; the peer sends it
/// again.
const CLAIM_INTERVAL: Duration = Duration::from_millis(200);

/// Links to all peers.
pub struct Peers {
    context: Context,
    /// Locked for writing when the members change.
    lanes: RwLock<HashMap<u64, Lanes>>,
    /// Members at unlisted addresses. Never locked while `lanes` is waited for.
    introductions: Mutex<Introductions>,
    senders: Senders,
    /// Set once Raft has started: Raft is created with its transport, before the transport can refer to it.
    connected: OnceLock<RaftConnection>,
    /// Source of this member's metrics, once it has started.
    figures: OnceLock<FiguresSource>,
}

/// State that exists once Raft runs.
struct RaftConnection {
    inbox: Arc<dyn Inbox>,
    stop: Stop,
    /// Runtime of the links, since members are added by the apply thread.
    runtime: Handle,
}

struct Lanes {
    urgent: Arc<LaneQueue>,
    bulk: Arc<LaneQueue>,
    addresses: Arc<watch::Sender<Addresses>>,
    /// Notified when the peer contacts this member, to dial it without further delay.
    heard: Arc<Notify>,
    activity: SharedActivity,
    /// Stops the links when the member is removed.
    end: (Stopper, Stop),
}

impl Lanes {
    fn new(addresses: Addresses) -> Lanes {
        Lanes {
            urgent: Arc::new(LaneQueue::new(URGENT_BYTES_MAX)),
            bulk: Arc::new(LaneQueue::new(BULK_BYTES_MAX)),
            addresses: Arc::new(watch::Sender::new(addresses)),
            heard: Arc::new(Notify::new()),
            activity: SharedActivity::default(),
            end: shutdown::stop(),
        }
    }
}

impl Peers {
    pub fn new(context: Context, checkpoints: Checkpoints) -> Peers {
        let others = context.roster.others().into_iter();
        let lanes = |urls| Lanes::new(Addresses::new(urls, Vec::new()));
        let lanes = others.map(|member| (member.id, lanes(member.peer_urls))).collect();
        let senders = Senders::new(context.clone(), checkpoints);
        Peers {
            context,
            lanes: RwLock::new(lanes),
            introductions: Mutex::default(),
            senders,
            connected: OnceLock::new(),
            figures: OnceLock::new(),
        }
    }

    /// Starts dialling and reporting to Raft. To be called once, inside the runtime.
    pub fn connect(&self, inbox: Arc<dyn Inbox>, stop: &Stop) {
        let lanes = self.lanes.write(); // No member is added meanwhile.
        let _first = self.context.raft.set(Arc::clone(&inbox));
        let connected = RaftConnection { inbox, stop: stop.clone(), runtime: Handle::current() };
        if self.connected.set(connected).is_err() {
            panic!("the links of a member are started once");
        }
        lanes.iter().for_each(|(id, lanes)| self.dial(*id, lanes));
    }

    /// Opens and maintains the links to a member, if Raft runs.
    fn dial(&self, to: u64, lanes: &Lanes) {
        let Some(RaftConnection { inbox, stop, runtime }) = self.connected.get() else { return };
        for (lane, queue) in [(Lane::Urgent, &lanes.urgent), (Lane::Bulk, &lanes.bulk)] {
            let route = Route { to, lane, addresses: Arc::clone(&lanes.addresses) };
            let (queue, activity) = (Arc::clone(queue), Arc::clone(&lanes.activity));
            let link = Link::new(self.context.clone(), route, queue, activity, Arc::clone(inbox));
            let (heard, stop, end) = (Arc::clone(&lanes.heard), stop.clone(), lanes.end.1.clone());
            runtime.spawn(async move {
                tokio::select! {
                    () = link.run(heard, stop) => {}
                    () = end.stopped() => {}
                }
            });
        }
    }

    /// Replaces the member list: opens links to new members and closes those to removed ones. A link to a
    /// member with a changed address stays until the member responds at the new one.
    pub fn set_members(&self, members: Vec<FirstMember>) {
        let before = self.context.roster.members();
        self.context.roster.replace(members);
        self.context.levels.retain(|id| self.context.standing(id) == Standing::Member);
        log_changes(&self.context.identity, &before, &self.context.roster.members());
        let is_removed = |id| self.context.roster.standing(id) == Standing::Removed;
        self.introductions.lock().follow(&self.context.roster.members(), is_removed);
        self.follow();
    }

    /// Updates the links to match the list and the introductions.
    fn follow(&self) {
        // Locked first, so that the later of two threads applies the newer state.
        let mut lanes = self.lanes.write();
        let others = self.context.roster.others().into_iter();
        let mut wanted: HashMap<u64, (Vec<String>, Vec<String>)> =
            others.map(|member| (member.id, (member.peer_urls, Vec::new()))).collect();
        for (id, claimed) in self.introductions.lock().urls() {
            wanted.entry(id).or_default().1 = claimed;
        }
        lanes.retain(|id, lanes| {
            let stays = wanted.contains_key(id);
            if !stays {
                lanes.end.0.stop();
                self.context.metrics.round_trips.lock().remove(id);
            }
            stays
        });
        for (id, (listed, claimed)) in wanted {
            if let Some(lanes) = lanes.get(&id) {
                lanes.addresses.send_if_modified(|addresses| addresses.follow(listed, claimed));
            } else {
                let added = Lanes::new(Addresses::new(listed, claimed));
                self.dial(id, &added);
                lanes.insert(id, added);
            }
        }
    }

    /// Returns a member's URLs, the one that last responded first.
    pub fn urls(&self, id: u64) -> Vec<String> {
        let lanes = self.lanes.read();
        lanes.get(&id).map(|lanes| lanes.addresses.borrow().by_last_answer()).unwrap_or_default()
    }

    /// Returns the URLs of all peers, introduced ones included, in no particular order.
    pub fn all_urls(&self) -> Vec<String> {
        let lanes = self.lanes.read();
        lanes.values().flat_map(|lanes| lanes.addresses.borrow().by_last_answer()).collect()
    }

    /// Returns the connection of the link to a responsive member.
    fn linked(&self, id: u64) -> Option<PeerConnection> {
        self.lanes.read().get(&id)?.activity.lock().as_ref().map(|activity| activity.connection.clone())
    }

    /// Reports whether `id` is introduced and not in the list.
    pub(super) fn is_introduced(&self, id: u64) -> bool {
        self.introductions.lock().holds(id)
    }

    /// Checks the listen addresses that a member of this cluster claims, and dials it there from then on.
    /// Skipped if the member responds where it is dialled, or is dialled there already. The hello must name
    /// this cluster and this member. `source`: origin of the hello.
    pub(super) fn check_address(self: &Arc<Self>, hello: &Hello, source: Option<IpAddr>) {
        let id = hello.from;
        if !self.may_introduce(id) {
            return;
        }
        let Some(urls) = claimed(&hello.peer_urls, &self.context.roster.own_urls()) else { return };
        let is_fine = |lanes: &Lanes| {
            lanes.activity.lock().is_some() || holds_all(&lanes.addresses.borrow().all(), &urls)
        };
        if self.lanes.read().get(&id).is_some_and(is_fine) {
            return;
        }
        let Some(RaftConnection { stop, runtime, .. }) = self.connected.get() else { return };
        let begun = self.introductions.lock().begin(id, &urls, source);
        let Some(Ticket { number, displaced }) = begun else { return };
        let (peers, stop) = (Arc::clone(self), stop.clone());
        runtime.spawn(async move {
            let checked = async {
                peers.introduce(id, urls).await;
                tokio::time::sleep(CLAIM_INTERVAL).await;
            };
            tokio::select! {
                () = checked => {}
                () = displaced.notified() => {}
                () = stop.stopped() => {}
            }
            peers.introductions.lock().end(number);
        });
    }

    /// Reports whether `id` may introduce itself. A single-member cluster accepts no introductions: it may
    /// have been forced to one member, and the removal of its peers is not applied yet. A member that
    /// started as a single one and lost its store has peers in its log.
    fn may_introduce(&self, id: u64) -> bool {
        let Context { roster, identity, .. } = &self.context;
        let is_alone = roster.others().is_empty() && !roster.lacks_others();
        id != identity.member_id && !is_alone && roster.standing(id) != Standing::Removed
    }

    pub(super) async fn introduce(&self, id: u64, urls: Vec<String>) {
        let Context { dialer, identity, roster, .. } = &self.context;
        let hello = self.context.hello(id);
        let claimed = dialer.to_claimed();
        let vouched = |running: &RunningCluster| vouches(running, identity, id);
        let running = running_cluster(&claimed, &urls, vouched).await;
        if !running.is_some_and(|running| vouched(&running))
            || !answers_as(&claimed, &urls, hello.clone()).await
        {
            return;
        }
        let before = self.urls(id);
        let moves = !before.is_empty() && !holds_all(&listed(&roster.members(), id), &urls);
        // Without TLS any server could have responded above. A response at the previous address is as good.
        let stays = moves && answers_as(dialer, &before, hello).await;
        if !stays && self.hold(id, &urls) {
            self.note_introduced(id, &before, &urls);
        }
    }

    fn note_introduced(&self, id: u64, before: &[String], urls: &[String]) {
        let Some(unlogged) = self.introductions.lock().pace.next(Instant::now()) else { return };
        let peer = format!("{id:x}");
        if before.is_empty() {
            tracing::info!(peer, ?urls, unlogged, "member is not in the configuration yet");
        } else {
            tracing::warn!(
                peer,
                from = ?before,
                to = ?urls,
                unlogged,
                "unreachable member responds at a URL that is not in the configuration"
            );
        }
    }

    /// Records a claim, and reports whether it was new: the list may have changed during the check.
    pub(super) fn hold(&self, id: u64, urls: &[String]) -> bool {
        let is_news = {
            // Locked first, so that the list is either followed after this, or read here in its newer
            // state.
            let mut introductions = self.introductions.lock();
            let listed = listed(&self.context.roster.members(), id);
            let is_news = !holds_all(&listed, urls) && self.may_introduce(id);
            if is_news {
                introductions.hold(id, urls.to_vec(), listed);
            } else {
                introductions.withdraw(id);
            }
            is_news
        };
        self.follow();
        is_news
    }

    async fn progress(&self, leader: u64, member_id: u64) -> Option<Progress> {
        for url in self.urls(leader) {
            let asked = async {
                let request = ProgressRequest { hello: Some(self.context.hello(leader)), member_id };
                dial(&self.context.dialer, &url).await.ok()?.progress(request).await.ok()
            };
            if let Ok(Some(answer)) = tokio::time::timeout(REQUEST_TIMEOUT, asked).await {
                let ProgressResponse { matched, last_index, applied } = answer.into_inner();
                let [matched, applied, last_index] =
                    [matched, applied.unwrap_or(matched), last_index].map(LogIndex);
                return Some(Progress { matched, applied, last_index });
            }
        }
        None
    }

    /// Notes that the peer opened a stream to this member, so it can be dialled.
    pub(super) fn heard(&self, from: u64) {
        if let Some(lanes) = self.lanes.read().get(&from) {
            lanes.heard.notify_waiters();
        }
    }

    /// Returns this member's metrics as JSON.
    pub(super) async fn figures(&self, figures: Figures) -> Option<Bytes> {
        self.figures.get()?(figures).await
    }

    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Reach for Peers {
    fn active_since(&self, member: u64) -> Option<Instant> {
        self.lanes.read().get(&member)?.activity.lock().as_ref().map(|activity| activity.since)
    }

    fn announced(&self, member: u64) -> Option<AnnouncedMembers> {
        self.active_since(member).and_then(|_| self.context.levels.announced(member))
    }

    fn ask_levels(&self, member: u64) -> AskedLevels<'_> {
        let (urls, hello) = (self.urls(member), self.context.hello(member));
        Box::pin(async move {
            let answer = answer_of(&self.context.dialer, &urls, hello).await?;
            let [known, cluster] = [answer.command_level, answer.cluster_level].map(CommandLevel);
            Some(AnnouncedMembers { known, cluster })
        })
    }

    fn ask_progress(&self, leader: u64, member: u64) -> ProgressAnswer<'_> {
        Box::pin(self.progress(leader, member))
    }

    fn ask_digest(&self, member: u64, after: LogIndex, to: LogIndex) -> AskedDigest<'_> {
        let hello = Some(self.context.hello(member));
        let request = ChangesDigestRequest { hello, after: after.0, to: to.0 };
        Box::pin(questions::ask_digest(self.linked(member), request))
    }

    fn ask_recount(&self, member: u64, span: RecountSpan) -> AskedRecount<'_> {
        Box::pin(questions::ask_recount(self.linked(member), self.context.hello(member), span))
    }

    fn ask_hash(&self, member: u64, at: i64) -> AskedHash<'_> {
        let urls = self.urls(member);
        let hello = self.context.hello(member);
        Box::pin(async move { questions::ask(&self.context.dialer, &urls, hello, at).await })
    }

    fn ask_figures(&self, member: u64, figures: Figures) -> AskedFigures<'_> {
        let (urls, hello) = (self.urls(member), self.context.hello(member));
        Box::pin(async move { questions::ask_figures(&self.context.dialer, &urls, hello, figures).await })
    }

    fn serve_figures(&self, source: FiguresSource) {
        let _served_before = self.figures.set(source);
    }
}

impl Transport for Peers {
    fn send(&self, to: u64, lane: Lane, message: Bytes) {
        // The peer's stream may be older than the cluster's level.
        if self.context.levels.is_too_old(to) {
            return;
        }
        let lanes = self.lanes.read();
        let Some(lanes) = lanes.get(&to) else { return };
        let queue = match lane {
            Lane::Urgent => &lanes.urgent,
            Lane::Bulk => &lanes.bulk,
        };
        if queue.push(message) == PushResult::Full {
            self.context.metrics.peers.send_failures.get_or_create(&To { To: self.context.label(to) }).inc();
            if let Some(connected) = self.connected.get() {
                connected.inbox.report_unreachable(to);
            }
        }
    }

    fn send_snapshot(&self, offer: SnapshotOffer) {
        // Until then there is no Raft to report to, and a newly elected leader offers the snapshot again.
        let Some(RaftConnection { inbox, stop, .. }) = self.connected.get() else { return };
        let to = offer.to;
        let urls = self.urls(to);
        if urls.is_empty() {
            return inbox.report_snapshot(to, SnapshotOutcome::Failed);
        }
        let message = move |applied| offer.message(applied);
        self.senders.send(to, urls, Box::new(message), inbox, stop);
    }
}

/// Logs the differences between two member lists, with etcd's texts and fields.
fn log_changes(own: &Identity, before: &[FirstMember], after: &[FirstMember]) {
    fn of(list: &[FirstMember], id: u64) -> Option<&FirstMember> {
        list.iter().find(|member| member.id == id)
    }
    let (cluster, local) = (format!("{:x}", own.cluster_id), format!("{:x}", own.member_id));
    for member in after {
        let (id, name, urls) = (format!("{:x}", member.id), &member.name, &member.peer_urls);
        let Some(old) = of(before, member.id) else {
            tracing::info!(
                cluster_id = cluster,
                local_member_id = local,
                added_peer_id = id,
                added_peer_name = name,
                added_peer_peer_urls = ?urls,
                added_peer_is_learner = member.is_learner,
                "added member"
            );
            continue;
        };
        if old.is_learner && !member.is_learner {
            tracing::info!(
                cluster_id = cluster,
                local_member_id = local,
                promoted_member_id = id,
                promoted_member_name = name,
                promoted_member_peer_urls = ?urls,
                "promote member"
            );
        }
        if old.peer_urls != member.peer_urls {
            tracing::info!(
                cluster_id = cluster,
                local_member_id = local,
                updated_remote_peer_id = id,
                updated_remote_peer_name = name,
                updated_remote_peer_urls = ?urls,
                updated_remote_peer_is_learner = member.is_learner,
                "updated member"
            );
        }
    }
    for gone in before.iter().filter(|member| of(after, member.id).is_none()) {
        tracing::info!(
            cluster_id = cluster,
            local_member_id = local,
            removed_remote_peer_id = format!("{:x}", gone.id),
            removed_remote_peer_name = gone.name,
            removed_remote_peer_urls = ?gone.peer_urls,
            removed_remote_peer_is_learner = gone.is_learner,
            "removed member"
        );
    }
}
