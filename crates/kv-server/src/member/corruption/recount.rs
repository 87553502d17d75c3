//! The state as it is now, recounted part by part on all members, without a pause.
//!
//! ```text
//!   leader: next span ─▶ digest here ─▶ digests of all others ─▶ majority ─▶ once more ─▶ alarm CORRUPT
//!      ▲                                                            │
//!      └──────────── pause: 60 times the CPU time of the part ◀─────┘
//! ```
//!
//! * `changes` finds what apply does differently, at once. This finds what became different later, such as a
//!   bit in memory, however long no entry reads it.
//! * A part takes a bounded time, and the pause after it makes the cost less than 2 % of one processor on the
//!   leader. Every other member recounts the same parts. A pass over a large state takes longer, not more.
//! * A pass ends at the revision that was the newest one when it began: under steady writes as well, old
//!   records are recounted again, and silent members are asked again.
//! * A difference counts if the same part differs twice.
//! * A member that gives no answer is not asked again in the same pass: it must not slow the pass down. While
//!   a voter is silent and the others have no majority, nothing is raised.

use std::collections::BTreeSet;
use std::time::Duration;

use data_dir::bootstrap::IMPORTED_AT;
use mvcc::{LogIndex, RecountAnswer, RecountBounds, RecountPass, RecountSpan};
use tokio::time::{Instant, sleep};

use super::verdict::{self, PeerValue, Verdict, named};
use crate::member::handle::Member;
use process::log::causes;

/// Records and bytes of one part: a few milliseconds.
const PART: RecountBounds = RecountBounds { records: 4096, raw_bytes: 2 << 20 };
/// The pause after a part, as a multiple of its CPU time: 1.7 %.
const PAUSE_FACTOR: u32 = 60;
/// Bounds of that pause. The upper one is for a part whose measured time is wrong.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Between the beginnings of two passes over a small state.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// A store with an entry after an import is of this cluster, however far its member lags. Without one it may
/// be another store, which is replaced soon.
const OF_THE_CLUSTER: LogIndex = LogIndex(IMPORTED_AT.index.0 + 1);
/// How often a member that lags is asked again, and the pause before that.
const TRIES: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// One leader's passes over the state.
#[derive(Debug)]
pub(super) struct Recount {
    /// None before its first part.
    pass: Option<RecountPass>,
    began: Instant,
    /// Members that are not asked in this pass.
    silent: BTreeSet<u64>,
}

impl Recount {
    pub fn new() -> Recount {
        Recount { pass: None, began: Instant::now(), silent: BTreeSet::new() }
    }

    /// Begins from the start at the next turn: another member led meanwhile.
    pub fn restart(&mut self) {
        *self = Recount::new();
    }

    /// Compares the next part, and pauses. Returns the members that differ from a majority; member 0 if no
    /// majority agrees.
    pub async fn turn(&mut self, member: &Member) -> Vec<u64> {
        let pass = self.pass.get_or_insert_with(|| member.store.recount_pass());
        let Some(span) = member.store.next_span(pass, PART) else {
            member.metrics.disk.recount_passes.inc();
            sleep(PASS_EVERY.saturating_sub(self.began.elapsed()).max(PAUSE_MIN)).await;
            self.restart();
            return Vec::new();
        };
        let span = RecountSpan { applied: span.applied.min(OF_THE_CLUSTER), ..span };
        let (differing, took) = self.compare(member, span).await;
        sleep((took * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX)).await;
        if differing.is_empty() {
            return differing;
        }
        let (again, _) = self.compare(member, span).await;
        let named = named(member);
        let is_news = |id: &u64| again.contains(id) && !named.contains(id);
        let both: Vec<u64> = differing.into_iter().filter(is_news).collect();
        if !both.is_empty() {
            let members_hex: Vec<String> = both.iter().map(|id| format!("{id:x}")).collect();
            let (from, to) = (span.from.to_string(), span.to.to_string());
            tracing::error!(from, to, members = ?members_hex, "members have different states of the same revisions");
        }
        both
    }

    /// The members whose state of a part differs, and the CPU time that the part took here.
    async fn compare(&mut self, member: &Member, span: RecountSpan) -> (Vec<u64>, Duration) {
        let (own, took) = match member.hasher.recount(span).await {
            Ok(recounted) => recounted,
            Err(error) => {
                tracing::warn!(error = causes(&error), "a part of the state was not recounted");
                return (Vec::new(), PASS_EVERY);
            }
        };
        member.metrics.disk.recount_seconds.inc_by(took.as_secs_f64());
        let (mut peers, named) = (Vec::new(), named(member));
        if let RecountAnswer::Digest(_) = own {
            for other in member.roster.others() {
                let is_asked = !self.silent.contains(&other.id) && !named.contains(&other.id);
                let answer = if is_asked { answer_of(member, other.id, span).await } else { None };
                if is_asked && answer.is_none() {
                    self.silent.insert(other.id);
                }
                peers.push(PeerValue { member: other.id, is_voter: !other.is_learner, value: answer });
            }
        }
        (verdict(member.ids.member, own, &peers, &named), took)
    }
}

/// Members with damage, and those that differ from a majority. What cannot be compared is left out; of
/// members that alarms name already, nothing is known here.
fn verdict(
    leader: u64,
    own: RecountAnswer,
    peers: &[PeerValue<RecountAnswer>],
    named: &BTreeSet<u64>,
) -> Vec<u64> {
    let own = match own {
        RecountAnswer::Digest(own) => own,
        RecountAnswer::Damaged => return vec![leader],
        RecountAnswer::NotYet | RecountAnswer::Compacted => return Vec::new(),
    };
    let digest = |recounted| match recounted {
        RecountAnswer::Digest(digest) => Some(digest),
        RecountAnswer::Damaged | RecountAnswer::NotYet | RecountAnswer::Compacted => None,
    };
    let digests: Vec<_> = peers.iter().map(|peer| peer.and_then(digest)).collect();
    let mut corrupt = match verdict::by_majority(leader, own, &digests) {
        Verdict::Agreed | Verdict::Incomplete => Vec::new(),
        // Without a majority it is decided in a pass in which all answer: an alarm for no member helps no
        // one.
        Verdict::Corrupt(members) if members == [0] && verdict::awaits_a_voter(&digests, named) => Vec::new(),
        Verdict::Corrupt(members) => members,
    };
    let damaged = peers.iter().filter(|peer| peer.value == Some(RecountAnswer::Damaged));
    corrupt.extend(damaged.map(|peer| peer.member));
    corrupt
}

async fn answer_of(member: &Member, other: u64, span: RecountSpan) -> Option<RecountAnswer> {
    for _ in 0..TRIES {
        match member.reach.ask_recount(other, span).await {
            Ok(RecountAnswer::NotYet) => sleep(RETRY_PAUSE).await,
            Ok(recounted) => return Some(recounted),
            Err(error) => {
                tracing::debug!(peer = format!("{other:x}"), error, "a part of a peer's state is not known");
                return None;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter((member, value): (u64, Option<RecountAnswer>)) -> PeerValue<RecountAnswer> {
        PeerValue { member, is_voter: true, value }
    }

    #[test]
    fn damage_speaks_for_itself_and_differences_by_the_majority() {
        let (a, b) = (RecountAnswer::Digest(1), RecountAnswer::Digest(2));
        let damaged = RecountAnswer::Damaged;
        for (own, peers, corrupt) in [
            (a, vec![Some(a), Some(a)], vec![]),
            (a, vec![Some(a), Some(b)], vec![3]),
            (b, vec![Some(a), Some(a)], vec![1]),
            (a, vec![Some(b)], vec![0]),
            (a, vec![Some(a), Some(damaged)], vec![3]),
            (a, vec![Some(damaged), Some(damaged)], vec![2, 3]),
            (damaged, vec![], vec![1]),
            (a, vec![None, Some(RecountAnswer::NotYet)], vec![]),
            (a, vec![Some(RecountAnswer::Compacted), Some(b)], vec![]),
            (a, vec![None, Some(b)], vec![]),
            (a, vec![None, Some(a), Some(a), Some(b)], vec![5]),
            (RecountAnswer::Compacted, vec![], vec![]),
        ] {
            let peers: Vec<_> = (2..).zip(peers).map(voter).collect();
            assert_eq!(verdict(1, own, &peers, &BTreeSet::new()), corrupt, "{own:?} {peers:?}");
        }
        let (peers, named) = ([(2, Some(b)), (3, None)].map(voter), BTreeSet::from([3]));
        assert_eq!(verdict(1, a, &peers, &named), [0], "one that is named already is not waited for");
    }
}
