//! The digest of what entries changed, compared between all members without a pause.
//!
//! ```text
//!   every 5 s, on the leader: span of entries since the last round ─▶ digests of all others ─▶ majority
//!     ─▶ alarm CORRUPT of each member that differs ─▶ that member is fenced
//! ```
//!
//! * A comparison costs one small question per member. The digest is kept up to date by apply
//!   (`mvcc::SpanDigest`).
//! * A member that has not applied the span's last entry is asked again, for a second at most.
//! * Without a majority, a voter that gives no answer is waited for, for a minute: it may decide, and until
//!   then nothing stops.
//! * A leader that differs hands leadership over.

use std::time::Duration;

use mvcc::{LogIndex, SpanDigest};
use tokio::time::sleep;

use super::verdict::{self, PeerValue, Verdict, named};
use crate::member::handle::Member;

/// Time between two rounds. A difference is found within two of them.
pub(super) const ROUND: Duration = Duration::from_secs(5);
/// Rounds without a majority in which a voter that is silent is waited for.
const UNDECIDED_MAX: u32 = 12;
/// How often a member that lags is asked again in a round, and the pause before that.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// How far the entries are compared.
#[derive(Debug, Default)]
pub(super) struct Changes {
    checked: LogIndex,
    /// Rounds since then without a majority.
    undecided: u32,
}

impl Changes {
    /// Compares the entries since the last round that decided.
    ///
    /// Returns the members that differ from a majority; member 0 if no majority agrees.
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
                    "members changed different things in the same entries: a voter that is silent decides"
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
                tracing::error!(after = after.0, to = to.0, members = ?members_hex, "members changed different things in the same entries");
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
