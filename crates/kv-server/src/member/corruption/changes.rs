//! Continuous comparison of digests of applied changes between all members.
//!
//! ```text
//!   every 5 s, on the leader: span of entries since the last round ─▶ digests of all peers ─▶ majority
//!     ─▶ alarm CORRUPT for each differing member ─▶ that member is fenced
//! ```
//!
//! * A round costs one small request per member. Apply maintains the digest (`mvcc::SpanDigest`).
//! * A member that has not applied the span's last entry is polled again for up to a second.
//! * Without a majority, the round is repeated for up to a minute while a voter does not respond: its digest
//!   may decide. Until then no member is fenced.
//! * A leader that differs transfers leadership.

use std::time::Duration;

use mvcc::{LogIndex, SpanDigest};
use tokio::time::sleep;

use super::verdict::{self, PeerValue, Verdict, named};
use crate::member::handle::Member;

/// Interval between two rounds. A difference is detected within two of them.
pub(super) const ROUND: Duration = Duration::from_secs(5);
/// Maximum number of rounds without a majority in which to wait for an unresponsive voter.
const UNDECIDED_MAX: u32 = 12;
/// Number of polls of a lagging member per round, and the pause between them.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Changes {
    checked: LogIndex,
    /// Rounds without a majority since `checked`.
    undecided: u32,
}

impl Changes {
    /// Compares the entries since the last decisive round.
    ///
    /// Returns the members that differ from a majority, or member 0 if there is no majority.
    pub async fn differing(&mut self, member: &Member) -> Vec<u64> {
        let Some((first, to)) = member.store.digests_kept() else { return Vec::new() };
        let after = if member.store.span_digest(self.checked, to) == SpanDigest::NotKept {
            first
        } else {
            self.checked
        };
        let SpanDigest::Known(own) = member.store.span_digest(after, to) else { return Vec::new() };
        if after == to {
            return Vec::new();
        }
        let (mut peers, named) = (Vec::new(), named(member));
        for other in member.roster.others() {
            let is_compared = !named.contains(&other.id);
            let value = if is_compared { digest_of(member, other.id, after, to).await } else { None };
            peers.push(PeerValue { member: other.id, is_voter: !other.is_learner, value });
        }
        let verdict = verdict::by_majority(member.ids.member, own, &peers);
        let is_undecided = verdict == Verdict::Corrupt(vec![0]) && verdict::awaits_a_voter(&peers, &named);
        if is_undecided && self.undecided < UNDECIDED_MAX {
            if self.undecided == 0 {
                tracing::warn!(
                    after = after.0,
                    to = to.0,
                    "members applied different changes; waiting for an unreachable voter"
                );
            }
            self.undecided += 1;
            return Vec::new();
        }
        *self = Changes { checked: to, undecided: 0 };
        match verdict {
            Verdict::Agreed | Verdict::Incomplete => Vec::new(),
            Verdict::Corrupt(members) => {
                let members_hex: Vec<String> = members.iter().map(|id| format!("{id:x}")).collect();
                tracing::error!(
                    after = after.0,
                    to = to.0,
                    members = ?members_hex,
                    "members applied different changes"
                );
                members
            }
        }
    }
}

async fn digest_of(member: &Member, other: u64, after: LogIndex, to: LogIndex) -> Option<u64> {
    for _ in 0..TRIES {
        match member.reach.ask_digest(other, after, to).await {
            Ok(SpanDigest::Known(digest)) => return Some(digest),
            Ok(SpanDigest::NotYet) => sleep(PAUSE).await,
            Ok(SpanDigest::NotKept) => return None,
            Err(error) => {
                tracing::debug!(peer = format!("{other:x}"), error, "no digest of a peer");
                return None;
            }
        }
    }
    None
}
