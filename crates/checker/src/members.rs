//! Checks member lists: all members report the same membership history, and a removed ID never
//! returns.
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
}

/// Member IDs seen so far.
#[derive(Debug, Default)]
pub struct MemberLists {
    /// Each ID with the round in which it was first seen.
    seen: BTreeMap<u64, u64>,
    /// First list without a previously seen ID.
    left: BTreeMap<u64, MemberIds>,
    pub count: u64,
}

impl MemberLists {
    pub fn take(&mut self, list: MemberIds) -> Result<(), BrokenRule> {
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
        let Self { round, member, at, ids } = self;
        write!(formatter, "member {member}, {:.6} s, round {round}: {ids:x?}", at.as_secs_f64())
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
            };
            let found = lists.iter().find_map(|it| known.take(list(it)).err());
            assert_eq!(found.map(|found| found.0), expected, "{lists:?}");
        }
    }
}
