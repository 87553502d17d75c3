//! What hashes of members say about who is corrupt: etcd's rules, but that a majority decides in each
//! comparison.

use std::collections::BTreeMap;

use mvcc::KvHash;

/// The hash of another member, unless it gave none.
#[derive(Clone, Copy, Debug)]
pub struct PeerHash {
    pub member: u64,
    pub hash: Option<KvHash>,
}

/// The members that are corrupt by a comparison of the newest state, from the leader's point of view; member
/// 0 if no majority agrees.
///
/// `before` and `after` are the leader's hashes at its newest revision, before and after others were asked
/// for the hash at `before`'s revision; a read point lies between. etcd names the first member that differs
/// from the leader, which is the wrong one if the leader is corrupt.
pub fn of_newest(leader: u64, before: KvHash, after: KvHash, peers: &[PeerHash]) -> Vec<u64> {
    let state = |hash: KvHash| (hash.hash_revision, hash.compact_revision);
    if state(before) == state(after) && before.hash != after.hash {
        return vec![leader];
    }
    // A follower is never ahead of the leader.
    let is_ahead =
        |hash: KvHash| hash.revision > after.revision || hash.compact_revision > after.compact_revision;
    let ahead = peers.iter().filter(|peer| peer.hash.is_some_and(is_ahead));
    let mut corrupt: Vec<u64> = ahead.map(|peer| peer.member).collect();
    if let Verdict::Corrupt(members) = of_compaction(leader, before, peers) {
        corrupt.extend(members);
        corrupt.sort_unstable();
        corrupt.dedup();
    }
    corrupt
}

/// What a comparison of one thing that all members must have alike says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All members have the same.
    Agreed,
    /// Not all members could be compared, and those that could agree.
    Incomplete,
    /// These members differ from a majority. Member 0 stands for the cluster: no majority agrees.
    Corrupt(Vec<u64>),
}

/// Compares a hash of the leader with those of all others; of a compaction, or of the newest state. Hashes
/// against another compact revision are not comparable.
pub fn of_compaction(leader: u64, own: KvHash, peers: &[PeerHash]) -> Verdict {
    let comparable = |hash: &KvHash| hash.compact_revision == own.compact_revision;
    let values = peers.iter().map(|peer| (peer.member, peer.hash.filter(comparable).map(|it| it.hash)));
    by_majority(leader, own.hash, &values.collect::<Vec<_>>())
}

/// Compares a value of the leader with those of all other members, where they are known.
pub fn by_majority<T: Copy + Ord>(leader: u64, own: T, peers: &[(u64, Option<T>)]) -> Verdict {
    let mut members_by_value = BTreeMap::from([(own, vec![leader])]);
    for (member, value) in peers {
        if let Some(value) = value {
            members_by_value.entry(*value).or_default().push(*member);
        }
    }
    if members_by_value.len() == 1 {
        let is_complete = peers.iter().all(|(_, value)| value.is_some());
        return if is_complete { Verdict::Agreed } else { Verdict::Incomplete };
    }
    let majority = peers.len().div_ceil(2) + 1;
    let right = members_by_value.iter().find(|(_, members)| members.len() >= majority);
    let Some(right) = right.map(|(value, _)| *value) else { return Verdict::Corrupt(vec![0]) };
    let differ = members_by_value.into_iter().filter(|(value, _)| *value != right);
    Verdict::Corrupt(differ.flat_map(|(_, members)| members).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: u32, compact_revision: i64, revision: i64) -> KvHash {
        KvHash { hash, compact_revision, hash_revision: revision, revision }
    }

    fn peers(hashes: &[Option<KvHash>]) -> Vec<PeerHash> {
        (2..).zip(hashes).map(|(member, hash)| PeerHash { member, hash: *hash }).collect()
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
}
