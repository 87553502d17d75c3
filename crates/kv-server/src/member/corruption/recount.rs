//! Continuous comparison of the current state between all members, part by part.
//!
//! ```text
//!   leader: next span ─▶ local digest ─▶ digests of all peers ─▶ majority ─▶ repeat ─▶ alarm CORRUPT
//!      ▲                                                         │
//!      └────────── pause: 60 times the CPU time of the part ◀────┘
//! ```
//!
//! * `changes` detects differences in apply immediately. This module detects later divergence, such as a
//!   flipped bit in memory, even if no entry reads it.
//! * A part takes a bounded time, and the pause after it limits the cost to less than 2 % of a processor on
//!   the leader. Every other member recounts the same parts. A larger state takes a longer pass at the same
//!   load.
//! * A pass covers the state at the revision at which it started. Old records are therefore recounted, and
//!   unresponsive members polled, again and again, even under steady writes.
//! * A difference counts only if the same part differs twice.
//! * An unresponsive member is not polled again in the same pass, so that it does not delay the pass. No
//!   alarm is raised while a voter is unresponsive and the responses have no majority.

use std::collections::BTreeSet;
use std::time::Duration;

use data_dir::bootstrap::IMPORTED_AT;
use mvcc::{LogIndex, RecountAnswer, RecountBounds, RecountPass, RecountSpan};
use tokio::time::{Instant, sleep};

use super::verdict::{self, PeerValue, Verdict, named};
use crate::member::handle::Member;
use process::log::causes;

/// Bounds of a part: a few milliseconds.
const PART: RecountBounds = RecountBounds { records: 4096, raw_bytes: 2 << 20 };
/// Pause after a part, as a multiple of its CPU time: 1.7 % load.
const PAUSE_FACTOR: u32 = 60;
/// Bounds of the pause. The upper bound protects against an incorrect CPU time measurement.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Minimum interval between the starts of two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(5);
/// First index after an import. A store that has applied it belongs to this cluster, however far its member
/// lags. A store without it may be a foreign store about to be replaced.
const OF_THE_CLUSTER: LogIndex = LogIndex(IMPORTED_AT.index.0 + 1);
/// Number of polls of a lagging member, and the pause between them.
const TRIES: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Recount {
    /// None before the first part.
    pass: Option<RecountPass>,
    began: Instant,
    /// Members that did not respond in this pass.
    silent: BTreeSet<u64>,
}

impl Recount {
    pub fn new() -> Recount {
        Recount { pass: None, began: Instant::now(), silent: BTreeSet::new() }
    }

    /// Restarts at the beginning of the state, after another member has led.
    pub fn restart(&mut self) {
        *self = Recount::new();
    }

    /// Compares the next part, then pauses. Returns the members that differ from a majority, or member 0 if
    /// there is no majority.
    pub async fn turn(&mut self, member: &Member) -> Vec<u64> {
        let pass = self.pass.get_or_insert_with(|| member.store.recount_pass());
        let Some(span) = member.store.next_span(pass, PART) else {
            member.metrics.disk.recount_passes.inc();
            sleep(PASS_INTERVAL.saturating_sub(self.began.elapsed()).max(PAUSE_MIN)).await;
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
            tracing::error!(
                from,
                to,
                members = ?members_hex,
                "members have different states at the same revisions"
            );
        }
        both
    }

    /// Returns the members that differ in a part, and the CPU time that this member spent on it.
    async fn compare(&mut self, member: &Member, span: RecountSpan) -> (Vec<u64>, Duration) {
        let (own, took) = match member.hasher.recount(span).await {
            Ok(recounted) => recounted,
            Err(error) => {
                tracing::warn!(error = causes(&error), "part of the state was not recounted");
                return (Vec::new(), PASS_INTERVAL);
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

/// Returns members with corrupt data and members that differ from a majority. Values that cannot be compared
/// are ignored; `peers` has no values of members in `named`.
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
        // A later pass decides, once all voters respond: an alarm without a named member cannot be repaired.
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
