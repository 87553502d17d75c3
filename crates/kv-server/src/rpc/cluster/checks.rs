//! Checks whether a membership change would leave the cluster unable to commit: etcd's rules, from the view
//! of one member.
//!
//! A member is *started* once it has published its name. Only voters count.

use std::time::Duration;

use api::Error;
use api::etcdserverpb::Member;

/// Time of uninterrupted contact after which a member counts as healthy; the same as in etcd.
const HEALTHY_DELAY: Duration = Duration::from_secs(5);

pub(super) struct MembersView<'a> {
    pub members: &'a [Member],
    pub own: u64,
    /// Time of uninterrupted contact with a member.
    pub active_for: &'a dyn Fn(u64) -> Option<Duration>,
    /// Members out of sync according to the leader: their votes count, but they may lack state.
    pub out_of_sync: &'a [u64],
}

impl MembersView<'_> {
    fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.is_learner)
    }

    /// Returns the number of voters that are healthy and in sync, including this member.
    fn healthy(&self) -> usize {
        let is_healthy =
            |id| id == self.own || (self.active_for)(id).is_some_and(|active| active > HEALTHY_DELAY);
        self.voters().filter(|member| is_healthy(member.id) && self.is_in_sync(member.id)).count()
    }

    fn is_in_sync(&self, id: u64) -> bool {
        !self.out_of_sync.contains(&id)
    }
}

fn quorum(count: usize) -> usize {
    count / 2 + 1
}

fn is_started(member: &&Member) -> bool {
    !member.name.is_empty()
}

pub(super) fn may_add(view: &MembersView<'_>, is_learner: bool) -> Result<(), Error> {
    let (count, started) = (view.voters().count(), view.voters().filter(is_started).count());
    let is_first = count == 1 && started == 1;
    if !is_learner && !is_first && started < quorum(count + 1) {
        return Err(Error::MemberNotEnoughStarted);
    }
    if count >= 2 && view.healthy() < quorum(count + 1) {
        return Err(Error::Unhealthy);
    }
    Ok(())
}

pub(super) fn may_remove(view: &MembersView<'_>, id: u64) -> Result<(), Error> {
    if view.members.iter().any(|member| member.id == id && member.is_learner) {
        return Ok(());
    }
    let rest = || view.voters().filter(|member| member.id != id);
    if rest().filter(is_started).count() < quorum(rest().count()) {
        return Err(Error::MemberNotEnoughStarted);
    }
    // Removing an unreachable member loses no votes.
    if id != view.own && (view.active_for)(id).is_none() {
        return Ok(());
    }
    // A member without state votes, so the remaining healthy members must be a quorum without it.
    if !view.is_in_sync(id) {
        let goes_on = view.healthy() >= quorum(rest().count());
        return if goes_on { Ok(()) } else { Err(Error::Unhealthy) };
    }
    let count = view.voters().count();
    if view.healthy().saturating_sub(1) < 1 + count.saturating_sub(1) / 2 {
        return Err(Error::Unhealthy);
    }
    Ok(())
}

/// Checks a promotion. The promoted member counts as started.
pub(super) fn may_promote(view: &MembersView<'_>) -> Result<(), Error> {
    let (count, started) = (view.voters().count(), view.voters().filter(is_started).count());
    if started + 1 < quorum(count + 1) { Err(Error::MemberNotEnoughStarted) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `1 2? ~3 4! 5+ 6-`: 1 is started and reachable for ten seconds, 2 has not started, 3 is a learner, 4
    /// is started and unreachable, 5 is reachable for five seconds, 6 is not in sync. This member is 1.
    fn judged(members: &str, check: impl Fn(&MembersView<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let member = |word: &str| {
            let id = word.trim_matches(['~', '?', '!', '+', '-']).parse().unwrap();
            let name = if word.ends_with('?') { String::new() } else { word.to_owned() };
            Member { id, name, is_learner: word.starts_with('~'), ..Member::default() }
        };
        let words: Vec<&str> = members.split(' ').collect();
        let listed: Vec<Member> = words.iter().map(|word| member(word)).collect();
        let active_for = |id: u64| {
            let word = words.iter().zip(&listed).find(|(_, member)| member.id == id)?.0;
            let seconds = if word.ends_with('+') { 5 } else { 10 };
            (!word.ends_with(['!', '?'])).then_some(Duration::from_secs(seconds))
        };
        let marked = words.iter().zip(&listed).filter(|(word, _)| word.ends_with('-'));
        let out_of_sync: Vec<u64> = marked.map(|(_, member)| member.id).collect();
        check(&MembersView { members: &listed, own: 1, active_for: &active_for, out_of_sync: &out_of_sync })
    }

    #[test]
    fn changes_that_would_stop_the_cluster_are_refused() {
        use Error::{MemberNotEnoughStarted as NotStarted, Unhealthy};
        let add: [(&str, bool, Result<(), Error>); 11] = [
            ("1", false, Ok(())),
            ("1 2?", false, Err(NotStarted)),
            ("1 2", false, Ok(())),
            ("1 2!", false, Err(Unhealthy)),
            ("1 2-", false, Err(Unhealthy)),
            ("1 2 3 4 5-", false, Ok(())),
            ("1 2!", true, Err(Unhealthy)),
            ("1 2 3!", false, Err(Unhealthy)),
            ("1 2 3+", false, Err(Unhealthy)),
            ("1 2 3 4 5!", false, Ok(())),
            ("1 ~2?", true, Ok(())),
        ];
        for (members, is_learner, wanted) in add {
            assert_eq!(judged(members, |view| may_add(view, is_learner)), wanted, "add to {members}");
        }
        let remove: [(&str, u64, Result<(), Error>); 20] = [
            ("1", 1, Err(NotStarted)),
            ("1 2", 1, Ok(())),
            ("1 2", 2, Ok(())),
            ("1 2?", 2, Ok(())),
            ("1 2?", 1, Err(NotStarted)),
            ("1 2 3!", 3, Ok(())),
            ("1 2 3!", 2, Err(Unhealthy)),
            ("1 2 3+", 2, Err(Unhealthy)),
            ("1 2 3+", 3, Err(Unhealthy)), // Reachable: the member counts, and is not healthy.
            ("1 2 3 4 5+", 5, Ok(())),
            ("1 ~2", 2, Ok(())),
            // The state would be lost with the member.
            ("1 2-", 1, Err(Unhealthy)),
            ("1 2-", 2, Ok(())),
            ("1 2 3-", 2, Err(Unhealthy)),
            ("1 2 3-", 3, Ok(())),
            ("1 2! 3-", 3, Err(Unhealthy)),
            ("1- 2 3!", 1, Err(Unhealthy)),
            ("1- 2", 2, Err(Unhealthy)),
            ("1- 2 3", 1, Ok(())),
            ("1 2", 9, Ok(())), // The state machine reports the unknown member.
        ];
        for (members, id, wanted) in remove {
            assert_eq!(judged(members, |view| may_remove(view, id)), wanted, "remove {id} of {members}");
        }
        for (members, wanted) in [("1 ~2", Ok(())), ("1 3? ~2", Ok(())), ("1 3? 4? ~2", Err(NotStarted))] {
            assert_eq!(judged(members, may_promote), wanted, "promote in {members}");
        }
    }
}
