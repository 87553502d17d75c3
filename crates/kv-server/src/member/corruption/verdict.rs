//! Identifies corrupt members from compared values. The rules are etcd's, except that a majority decides
//! every comparison.

use std::collections::{BTreeMap, BTreeSet};

use mvcc::KvHash;

use crate::member::handle::Member;

/// A peer's value; none if the peer did not respond.
#[derive(Clone, Copy, Debug)]
pub struct PeerValue<T> {
    pub member: u64,
    pub is_voter: bool,
    pub value: Option<T>,
}

impl<T> PeerValue<T> {
    pub fn and_then<U>(self, of: impl FnOnce(T) -> Option<U>) -> PeerValue<U> {
        PeerValue { member: self.member, is_voter: self.is_voter, value: self.value.and_then(of) }
    }
}

/// Returns the members that are corrupt according to hashes at the leader's current revision, or member 0 if
/// there is no majority.
///
/// `before` and `after` are the leader's hashes at its current revision, taken before and after the peers
/// were queried for the hash at `before`'s revision, with a read point in between. etcd names the first
/// member that differs from the leader, which is wrong if the leader is corrupt.
pub fn of_newest(leader: u64, before: KvHash, after: KvHash, peers: &[PeerValue<KvHash>]) -> Vec<u64> {
    let state = |hash: KvHash| (hash.hash_revision, hash.compact_revision);
    if state(before) == state(after) && before.hash != after.hash {
        return vec![leader];
    }
    // A follower is never ahead of the leader.
    let is_ahead =
        |hash: KvHash| hash.revision > after.revision || hash.compact_revision > after.compact_revision;
    let ahead = peers.iter().filter(|peer| peer.value.is_some_and(is_ahead));
    let mut corrupt: Vec<u64> = ahead.map(|peer| peer.member).collect();
    if let Verdict::Corrupt(members) = of_compaction(leader, before, peers) {
        corrupt.extend(members);
        corrupt.sort_unstable();
        corrupt.dedup();
    }
    corrupt
}

/// Result of comparing one value that must be equal on all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Agreed,
    /// Some members could not be compared; the known values are equal.
    Incomplete,
    /// Members that differ from a majority. Member 0 denotes the cluster: there is no majority.
    Corrupt(Vec<u64>),
}

/// Compares a hash of the leader, at a compaction or at the current revision, with the hashes of all peers.
/// Hashes with different compact revisions are not comparable.
pub fn of_compaction(leader: u64, own: KvHash, peers: &[PeerValue<KvHash>]) -> Verdict {
    let comparable = |hash: KvHash| (hash.compact_revision == own.compact_revision).then_some(hash.hash);
    let values = peers.iter().map(|peer| peer.and_then(comparable));
    by_majority(leader, own.hash, &values.collect::<Vec<_>>())
}

/// Compares a value of the leader with the known values of all peers. Only voters count for the majority: a
/// learner may be unreachable forever.
pub fn by_majority<T: Copy + Ord>(leader: u64, own: T, peers: &[PeerValue<T>]) -> Verdict {
    let mut members_by_value = BTreeMap::from([(own, vec![leader])]);
    let (mut voters, mut voters_by_value) = (1, BTreeMap::from([(own, 1)]));
    for peer in peers {
        voters += usize::from(peer.is_voter);
        if let Some(value) = peer.value {
            members_by_value.entry(value).or_default().push(peer.member);
            *voters_by_value.entry(value).or_default() += usize::from(peer.is_voter);
        }
    }
    if members_by_value.len() == 1 {
        let is_complete = peers.iter().all(|peer| peer.value.is_some());
        return if is_complete { Verdict::Agreed } else { Verdict::Incomplete };
    }
    let right = voters_by_value.into_iter().find(|(_, count)| *count > voters / 2);
    let Some((right, _)) = right else { return Verdict::Corrupt(vec![0]) };
    let differ = members_by_value.into_iter().filter(|(value, _)| *value != right);
    Verdict::Corrupt(differ.flat_map(|(_, members)| members).collect())
}

/// Reports whether an unresponsive voter could decide. A voter that an alarm names could not.
pub fn awaits_a_voter<T>(peers: &[PeerValue<T>], named: &BTreeSet<u64>) -> bool {
    peers.iter().any(|peer| peer.is_voter && peer.value.is_none() && !named.contains(&peer.member))
}

/// Transfers leadership to a voter that is not known to be corrupt, since followers copy the leader's state.
/// Tries the active and in-sync voters one after another. Voters named by an alarm are skipped: two corrupt
/// members would transfer leadership to each other.
pub(crate) async fn give_up_leadership(member: &Member) {
    let (named, own) = (named(member), member.ids.member);
    for id in member.roster.membership().voters {
        if id == own || named.contains(&id) || member.reach.active_since(id).is_none() {
            continue;
        }
        if !member.raft.progress_of(id).await.is_some_and(|progress| progress.is_in_sync()) {
            continue;
        }
        member.hand_over_to(id).await;
        if member.status().leader != Some(own) {
            return;
        }
    }
    tracing::warn!("leader is corrupt, and no other member can take over leadership");
}

/// Returns the members named by alarms CORRUPT. They are excluded from comparisons: as the cluster accepts
/// further writes, each comparison would report them again, or have no majority while another member is down.
pub(super) fn named(member: &Member) -> BTreeSet<u64> {
    state_machine::corrupt_members(&member.store).unwrap_or_default()
}

/// Error of a start check: the member's state differs from a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{member:x} found data inconsistency with peers")]
pub struct Differs {
    member: u64,
}

/// Compares a starting member's hash with the peers' hashes at the same revision. Peers without a hash or
/// with another compact revision are ignored.
pub fn compare(member: u64, own: KvHash, others: &[(u64, Result<KvHash, String>)]) -> Result<(), Differs> {
    let mut differs = false;
    for (other, hash) in others {
        let peer = format!("{other:x}");
        match hash {
            Err(error) => tracing::warn!(peer, error, "cannot fetch hash from remote peer"),
            Ok(hash) if hash.hash == own.hash => {}
            Ok(hash) if hash.compact_revision != own.compact_revision => {
                tracing::warn!(peer, "found different compact revision values from remote peer");
            }
            Ok(_) => {
                tracing::warn!(peer, "found different hash values from remote peer");
                differs = true;
            }
        }
    }
    if differs { Err(Differs { member }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: u32, compact_revision: i64, revision: i64) -> KvHash {
        KvHash { hash, compact_revision, hash_revision: revision, revision }
    }

    fn peers(hashes: &[Option<KvHash>]) -> Vec<PeerValue<KvHash>> {
        (2..).zip(hashes).map(|(member, value)| PeerValue { member, is_voter: true, value: *value }).collect()
    }

    #[test]
    fn a_learner_is_judged_and_does_not_decide() {
        use Verdict::{Agreed, Corrupt, Incomplete};
        // Members 2, 3, …: a value of a voter; in brackets, of a learner; `-` for no response.
        for (others, verdict) in [
            ("7 8 [-]", Corrupt(vec![3])),
            ("7 8 [8]", Corrupt(vec![3, 4])),
            ("7 7 [8]", Corrupt(vec![4])),
            ("8 8 [7] [7]", Corrupt(vec![1, 4, 5])),
            ("8 [7]", Corrupt(vec![0])),
            ("8 - [7]", Corrupt(vec![0])),
            ("[8]", Corrupt(vec![2])),
            ("7 7 [-]", Incomplete),
            ("7 7 [7]", Agreed),
        ] {
            let peer = |(member, word): (u64, &str)| {
                let value = word.trim_matches(['[', ']']).parse::<u32>().ok();
                PeerValue { member, is_voter: !word.starts_with('['), value }
            };
            let peers: Vec<_> = (2..).zip(others.split(' ')).map(peer).collect();
            assert_eq!(by_majority(1, 7, &peers), verdict, "{others}");
            let awaits = others.split(' ').any(|word| word == "-");
            assert_eq!(awaits_a_voter(&peers, &BTreeSet::new()), awaits, "{others}");
            assert!(!awaits_a_voter(&peers, &BTreeSet::from([3])), "{others}");
        }
    }

    #[test]
    fn the_newest_state_is_judged_by_the_majority() {
        let same = hash(7, 3, 10);
        let (same_hash, other) = (Some(same), Some(hash(8, 3, 10)));
        for (after, others, corrupt) in [
            (same, vec![same_hash, same_hash], vec![]),
            (same, vec![None, None], vec![]),
            (hash(8, 3, 10), vec![same_hash], vec![1]),
            (hash(8, 3, 11), vec![same_hash], vec![]),
            (hash(8, 4, 10), vec![same_hash], vec![]),
            (same, vec![same_hash, other], vec![3]),
            (same, vec![other, other], vec![1]),
            (same, vec![other], vec![0]),
            (same, vec![other, None], vec![0]),
            (same, vec![Some(hash(8, 2, 10))], vec![]),
            (same, vec![Some(hash(7, 4, 10))], vec![2]),
            (hash(9, 4, 12), vec![Some(hash(8, 4, 10))], vec![]),
            (same, vec![Some(hash(7, 3, 11))], vec![2]),
            (same, vec![Some(hash(8, 3, 11)), same_hash], vec![2]),
            (hash(9, 3, 11), vec![Some(KvHash { revision: 11, ..same })], vec![]),
        ] {
            assert_eq!(of_newest(1, same, after, &peers(&others)), corrupt, "{after:?} {others:?}");
        }
    }

    #[test]
    fn a_compaction_is_judged_by_the_majority() {
        use Verdict::{Agreed, Corrupt, Incomplete};
        let (own, other, third, unlike) = (hash(7, 3, 10), hash(8, 3, 10), hash(9, 3, 10), hash(8, 2, 10));
        let (own_hash, other_hash) = (Some(own), Some(other));
        for (others, verdict) in [
            (vec![own_hash, own_hash], Agreed),
            (vec![own_hash, None], Incomplete),
            (vec![own_hash, Some(unlike)], Incomplete),
            (vec![None, None], Incomplete),
            (vec![own_hash, other_hash], Corrupt(vec![3])),
            (vec![other_hash, other_hash], Corrupt(vec![1])),
            (vec![other_hash, None], Corrupt(vec![0])),
            (vec![other_hash], Corrupt(vec![0])),
            (vec![other_hash, Some(third)], Corrupt(vec![0])),
            (vec![own_hash, own_hash, other_hash, Some(third)], Corrupt(vec![4, 5])),
            (vec![own_hash, other_hash, other_hash], Corrupt(vec![0])),
        ] {
            assert_eq!(of_compaction(1, own, &peers(&others)), verdict, "{others:?}");
        }
    }

    #[test]
    fn a_member_starts_unless_a_comparable_hash_differs() {
        let hash =
            |hash, compact_revision| Ok(KvHash { hash, compact_revision, hash_revision: 9, revision: 9 });
        let own = KvHash { hash: 7, compact_revision: 3, hash_revision: 9, revision: 9 };
        for (others, is_alike) in [
            (vec![], true),
            (vec![hash(7, 3), hash(8, 2)], true),
            (vec![Err("unreachable".to_owned()), hash(7, 3)], true),
            (vec![hash(7, 3), hash(8, 3)], false),
        ] {
            let others: Vec<_> = (2..).zip(others).collect();
            assert_eq!(compare(1, own, &others).is_ok(), is_alike, "{others:?}");
        }
        assert_eq!(Differs { member: 0xab }.to_string(), "ab found data inconsistency with peers");
    }
}
