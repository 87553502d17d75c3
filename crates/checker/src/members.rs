//! Checks member lists: all members report the same membership history, a removed ID never returns,
//! the cluster id is constant, and the term of a member never goes back.
//!
//! Member lists are linearizable, and each round of requests starts after the previous one has
//! finished. Members with different lists in round after round therefore contradict each other,
//! even while the membership changes.
//!
//! Must not depend on connections or clocks.

use crate::leases::BrokenRule;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct MemberIds {
    pub round: u64,
    /// Index of the endpoint that sent the response.
    pub member: usize,
    pub at: Duration,
    pub ids: Vec<u64>,
    /// Cluster id and term in the header of the response.
    pub cluster: u64,
    pub term: u64,
}

/// Member IDs seen so far.
#[derive(Debug, Default)]
pub struct MemberLists {
    /// Each ID with the round in which it was first seen.
    seen: BTreeMap<u64, u64>,
    /// First list without a previously seen ID.
    left: BTreeMap<u64, MemberIds>,
    cluster: Option<MemberIds>,
    /// Last response of each member.
    last: BTreeMap<usize, MemberIds>,
    pub count: u64,
}

impl MemberLists {
    pub fn take(&mut self, list: MemberIds) -> Result<(), BrokenRule> {
        let first = self.cluster.get_or_insert_with(|| list.clone());
        if first.cluster != list.cluster {
            return Err(("members report different cluster ids", vec![first.to_string(), list.to_string()]));
        }
        if let Some(last) = self.last.get(&list.member).filter(|last| last.term > list.term) {
            return Err(("the term of a member went back", vec![last.to_string(), list.to_string()]));
        }
        self.last.insert(list.member, list.clone());
        let returned = |id: &&u64| self.left.get(id).is_some_and(|before| before.round < list.round);
        if let Some(id) = list.ids.iter().find(returned) {
            let evidence = vec![format!("without {id:x}: {}", self.left[id]), format!("with it: {list}")];
            return Err(("a member that had left the list is in it again", evidence));
        }
        for (&id, &first) in &self.seen {
            if first < list.round && !list.ids.contains(&id) {
                self.left.entry(id).or_insert_with(|| list.clone());
            }
        }
        for &id in &list.ids {
            self.seen.entry(id).or_insert(list.round);
        }
        self.count += 1;
        Ok(())
    }
}

impl fmt::Display for MemberIds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, member, at, ids, cluster, term } = self;
        let at = at.as_secs_f64();
        write!(
            formatter,
            "member {member}, {at:.6} s, round {round}: {ids:x?}, term {term} of cluster {cluster:x}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go_once_and_all_members_say_the_same() {
        let again = Some("a member that had left the list is in it again");
        for (lists, expected) in [
            (&[(0, &[1, 2][..]), (0, &[1, 2]), (1, &[1, 2])][..], None),
            // Added and removed, while members respond before and after the change in the same
            // round.
            (&[(0, &[1]), (1, &[1, 2]), (1, &[1]), (2, &[1, 2]), (3, &[2]), (3, &[1, 2]), (4, &[2])], None),
            (&[(0, &[1, 2]), (1, &[1, 3]), (2, &[1, 2])], again),
            (&[(0, &[1, 2]), (0, &[1, 3]), (1, &[1, 2]), (1, &[1, 3]), (2, &[1, 2])], again),
        ] {
            let mut known = MemberLists::default();
            let list = |&(round, ids): &(u64, &[u64])| MemberIds {
                round,
                member: 0,
                at: Duration::ZERO,
                ids: ids.to_vec(),
                cluster: 1,
                term: 1,
            };
            let found = lists.iter().find_map(|it| known.take(list(it)).err());
            assert_eq!(found.map(|found| found.0), expected, "{lists:?}");
        }
    }

    #[test]
    fn terms_do_not_go_back_and_the_cluster_stays_the_same() {
        let list = |round, member, cluster, term| MemberIds {
            round,
            member,
            at: Duration::ZERO,
            ids: vec![1, 2],
            cluster,
            term,
        };
        let back = Some("the term of a member went back");
        let other = Some("members report different cluster ids");
        for (lists, expected) in [
            ([list(0, 0, 7, 3), list(0, 1, 7, 2), list(1, 0, 7, 3)], None),
            ([list(0, 0, 7, 3), list(0, 1, 7, 4), list(1, 0, 7, 2)], back),
            ([list(0, 0, 7, 3), list(0, 1, 8, 3), list(1, 0, 7, 3)], other),
        ] {
            let mut known = MemberLists::default();
            let shown = format!("{lists:?}");
            let found = lists.into_iter().find_map(|list| known.take(list).err());
            assert_eq!(found.map(|found| found.0), expected, "{shown}");
        }
    }
}
