//! Context shared by all peer traffic: the members, and the bounds of messages.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use api::peer::Hello;
use parking_lot::Mutex;
use raft_node::Inbox;
use state_machine::{ClusterLevel, CommandLevel, level};

use super::introduction::claim;
use crate::member::{AnnouncedMembers, Fence, Roster, Standing};
use data_dir::Identity;
use telemetry::metrics::Metrics;
use transport::tls::Dialer;

/// Version of the bytes inside a message: raft-node's encoding.
pub(super) const ENCODING: u32 = 1;
/// The same bytes, once the cluster has a level of commands: versions without levels reject it.
const ENCODING_WITH_LEVEL: u32 = 2;
/// Bytes in one batch. Large enough to catch up at disk speed, small enough to be decoded within a
/// millisecond or so.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Largest batch accepted from a peer: a message may exceed the log's largest entry.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Bytes in flight on one connection; see `net/http2`.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;
/// Maximum streams per connection: a lane, a probe, and a few requests or lease batches.
pub(super) const STREAMS_MAX: u32 = 32;

/// Response to a removed member, with etcd's text. A member that receives it stops.
pub(super) const REMOVED: &str = "the member has been permanently removed from the cluster";
/// Response of a learner to a removed member, which does not stop it: the removal may not be committed at
/// the voters yet, which then need its vote.
pub(super) const REMOVED_SAYS_A_LEARNER: &str = "the member is removed from the list of this learner";
/// Start of the reply to a member of another cluster.
pub(super) const CLUSTER_MISMATCH: &str = "cluster ID mismatch";
/// Start of the reply to a hello for another member than this one.
pub(super) const MEMBER_MISMATCH: &str = "member ID mismatch";

/// Identity of this member, its peers, metrics, and the dialer that reaches them.
#[derive(Clone)]
pub struct Context {
    pub identity: Arc<Identity>,
    pub roster: Arc<Roster>,
    pub metrics: Arc<Metrics>,
    pub dialer: Dialer,
    /// Peer URLs of this member by its flags.
    pub advertised: Arc<[String]>,
    /// Raised while the state of this member is known to be corrupt.
    pub fence: Arc<Fence>,
    pub levels: Levels,
    /// This member's Raft, once it runs.
    pub raft: Arc<OnceLock<Arc<dyn Inbox>>>,
}

/// Command levels: the cluster's, and the last ones announced by peers.
#[derive(Clone, Default)]
pub struct Levels {
    pub(super) cluster: ClusterLevel,
    /// Announcements of listed members.
    announced: Arc<Mutex<HashMap<u64, AnnouncedMembers>>>,
}

impl Levels {
    pub fn of(cluster: ClusterLevel) -> Levels {
        Levels { cluster, announced: Arc::default() }
    }

    pub(super) fn announced(&self, member: u64) -> Option<AnnouncedMembers> {
        self.announced.lock().get(&member).copied()
    }

    /// Forgets a member that does not respond: it may return with a different version.
    pub(super) fn forget(&self, member: u64) {
        self.announced.lock().remove(&member);
    }

    /// Forgets members that are not listed any more.
    pub(super) fn retain(&self, is_listed: impl Fn(u64) -> bool) {
        self.announced.lock().retain(|member, _| is_listed(*member));
    }

    /// Reports whether the member is known to be too old for the cluster.
    pub(super) fn is_too_old(&self, member: u64) -> bool {
        let cluster = self.cluster.get();
        cluster > CommandLevel(0) && self.announced(member).is_some_and(|levels| levels.known < cluster)
    }

    fn refusal(&self, hello: &Hello) -> Option<String> {
        if !(ENCODING..=ENCODING_WITH_LEVEL).contains(&hello.encoding) {
            return Some(format!("message encoding {} is not {ENCODING}", hello.encoding));
        }
        if base::mutant("hello-of-any-level") {
            return None;
        }
        let sender = level::check(CommandLevel(hello.command_level), self.cluster.get());
        let receiver = level::check(CommandLevel::OWN, CommandLevel(hello.cluster_level));
        let refused = |id: u64| move |error| format!("member {id:x}: {error}");
        sender.err().map(refused(hello.from)).or(receiver.err().map(refused(hello.to)))
    }
}

/// Returns the hello of a member that listens for peers at these URLs. `cluster`: the level that it has applied.
pub(super) fn hello(
    identity: &Identity,
    to: u64,
    peer_urls: String,
    cluster: CommandLevel,
    is_founder: bool,
) -> Hello {
    let Identity { cluster_id, member_id: from, imported, .. } = *identity;
    let encoding = if cluster > CommandLevel(0) { ENCODING_WITH_LEVEL } else { ENCODING };
    let (command_level, cluster_level) = (CommandLevel::OWN.0, cluster.0);
    Hello { cluster_id, from, to, encoding, peer_urls, command_level, cluster_level, imported, is_founder }
}

impl Context {
    /// Creates a context without extra addresses, in a cluster of the lowest level.
    pub fn new(
        identity: &Arc<Identity>,
        roster: &Arc<Roster>,
        metrics: &Arc<Metrics>,
        dialer: Dialer,
        fence: &Arc<Fence>,
    ) -> Context {
        Context {
            identity: Arc::clone(identity),
            roster: Arc::clone(roster),
            metrics: Arc::clone(metrics),
            dialer,
            advertised: Arc::default(),
            fence: Arc::clone(fence),
            levels: Levels::default(),
            raft: Arc::default(),
        }
    }

    /// Returns the reason to reject a hello, if there is one. An accepted hello of a listed member updates
    /// its announced level; a rejected one does not, since without TLS anyone may claim to be that member.
    pub(super) fn refusal(&self, hello: &Hello) -> Option<String> {
        let refusal = self.levels.refusal(hello);
        if refusal.is_none() && self.standing(hello.from) == Standing::Member {
            let [known, cluster] = [hello.command_level, hello.cluster_level].map(CommandLevel);
            self.levels.announced.lock().insert(hello.from, AnnouncedMembers { known, cluster });
        }
        refusal
    }

    pub(super) fn hello(&self, to: u64) -> Hello {
        let peer_urls = claim(&self.roster.own_urls(), &self.advertised);
        hello(&self.identity, to, peer_urls, self.levels.cluster.get(), self.is_founder())
    }

    /// Reports whether the state of this member descends from its own first state.
    fn is_founder(&self) -> bool {
        self.raft.get().is_some_and(|raft| raft.start().is_founder)
    }

    /// Reports whether the sender and this member are founders with unlike first states: their logs agree in
    /// indexes and terms, and not in content.
    pub(super) fn has_unlike_start(&self, hello: &Hello) -> bool {
        hello.is_founder && hello.imported != self.identity.imported && self.is_founder()
    }

    /// Returns a member's label value in metrics.
    pub(super) fn label(&self, id: u64) -> String {
        match self.roster.standing(id) {
            Standing::Member => format!("{id:x}"),
            Standing::Removed | Standing::Unknown => "unknown".to_owned(),
        }
    }

    /// Returns the standing of the sender `id`. This member does not send to itself.
    pub(super) fn standing(&self, id: u64) -> Standing {
        if id == self.identity.member_id { Standing::Unknown } else { self.roster.standing(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_dir::FirstMember;

    #[test]
    fn a_version_that_knows_less_than_the_cluster_uses_is_refused_by_both_sides() {
        let own = CommandLevel::OWN.0;
        // Sender's highest level, its cluster's level, this cluster's level.
        let cases = [
            (0, 0, 0, None),
            (0, 0, own, Some("member 1: this version is too old")),
            (own, own, own, None),
            (own + 1, 0, 0, None),
            (own + 1, own, 0, None),
            (own + 1, own + 1, own, Some("member 2: this version is too old")),
        ];
        for (command_level, cluster_level, cluster, wanted) in cases {
            let levels = Levels::of(ClusterLevel::at(CommandLevel(cluster)));
            let sent =
                Hello { from: 1, to: 2, encoding: 1, command_level, cluster_level, ..Hello::default() };
            let refusal = levels.refusal(&sent);
            let is_wanted = match (&refusal, wanted) {
                (Some(refusal), Some(wanted)) => refusal.starts_with(wanted),
                (refusal, wanted) => refusal.is_none() && wanted.is_none(),
            };
            assert!(is_wanted, "{command_level} {cluster_level} {cluster}: {refusal:?}");
        }
    }

    fn identity() -> Identity {
        Identity { format: 1, cluster_id: 7, member_id: 1, ..Identity::default() }
    }

    #[test]
    fn only_a_hello_of_a_listed_member_that_is_not_refused_is_an_announcement() {
        let member = |id| FirstMember { id, name: String::new(), peer_urls: Vec::new(), is_learner: false };
        let roster = Roster::new(1, [1, 2].map(member).to_vec(), Box::new(|_| false));
        let levels = Levels::of(ClusterLevel::at(CommandLevel::OWN));
        let (identity, roster) = (Arc::new(identity()), Arc::new(roster));
        let context = Context::new(&identity, &roster, &Arc::default(), Dialer::default(), &Arc::default());
        let context = Context { levels, ..context };
        let own = CommandLevel::OWN;
        let hello = |from, command_level| Hello { from, command_level, encoding: 1, ..Hello::default() };
        let announced = Some(AnnouncedMembers { known: own, cluster: CommandLevel(0) });
        for (hello, of_two) in [
            (hello(9, own.0), None),
            (hello(2, 0), None),
            (hello(2, own.0), announced),
            (hello(2, 0), announced),
            (Hello { encoding: 99, ..hello(2, own.0 + 1) }, announced),
        ] {
            context.refusal(&hello);
            assert_eq!((context.levels.announced(2), context.levels.announced(9)), (of_two, None));
        }
    }

    #[test]
    fn a_version_without_levels_does_not_know_the_encoding_of_a_cluster_with_a_level() {
        let identity = identity();
        for (cluster, encoding) in [(CommandLevel(0), ENCODING), (CommandLevel::LEVELS, 2)] {
            let sent = hello(&identity, 2, String::new(), cluster, true);
            assert_eq!((sent.encoding, sent.command_level), (encoding, CommandLevel::OWN.0));
        }
    }
}
