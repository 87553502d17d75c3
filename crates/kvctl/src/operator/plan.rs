//! The next step of a replacement, determined from the member list only.
//!
//! ```text
//!   OLD is reachable      add NEW as a learner ─▶ wait for its start ─▶ promote it ─▶ remove OLD
//!   OLD is unreachable    remove OLD ─▶ add NEW as a learner ─▶ wait for its start ─▶ promote it
//! ```

use api::etcdserverpb::Member;

/// Desired outcome of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// A name, or an id in hexadecimal digits.
    pub old: String,
    pub new_name: String,
    /// Peer URLs of the new member, sorted.
    pub new_urls: Vec<String>,
    /// True if the old member was removed by this command or an earlier run of it.
    pub is_old_removed: bool,
    /// True if the new member was promoted by this command or an earlier run of it.
    pub is_new_promoted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplaceStep {
    /// Add the new member as a learner.
    Add,
    /// Wait for the start of the new member, which has been added.
    AwaitStart {
        id: u64,
    },
    /// Promote the new member, a started learner.
    Promote {
        id: u64,
    },
    /// Remove the unreachable old member before adding the new one.
    RemoveSilent {
        id: u64,
    },
    /// Remove the old member: the new one is a voter.
    Remove {
        id: u64,
    },
    /// Wait for a quorum: the new member is a voter, but too few voters are reachable to remove the old
    /// one. The new member may have just started.
    AwaitQuorum(ReplaceRefusal),
    Done,
}

/// Reason a replacement cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceRefusal {
    #[error(
        "{old} is not a member of the cluster, and no member has the URL {urls}. If {old} was removed by an earlier \
         run, run again with --removed"
    )]
    NoSuchMember { old: String, urls: String },
    #[error(
        "{new} votes already, and {old} is a member as well: nothing would come in its place. If an earlier run \
         promoted {new} for it, run again with --promoted"
    )]
    VotesAlready { new: String, old: String },
    #[error("{old} is the name of {count} members: use the ID of one of them")]
    Ambiguous { old: String, count: usize },
    #[error("{old} has the URL {urls}: a new member needs a separate address")]
    SameUrl { old: String, urls: String },
    #[error("the member with the URL {urls} has the name {name}, not {wanted}")]
    OtherName { urls: String, name: String, wanted: String },
    #[error("{old} is a learner: remove it with MemberRemove and add another one")]
    Learner { old: String },
    #[error("{name} is the name of member {id:x}, which stays: choose another name for the new member")]
    NameTaken { name: String, id: u64 },
    #[error(
        "member {id:x} is a learner, and a cluster accepts one at a time: promote it or remove it first \
         (etcdctl member promote {id:x})"
    )]
    OtherLearner { id: u64 },
    #[error("with {answering}/{voters} voters up, {step} would lose quorum; unreachable: {silent}")]
    Quorum { step: &'static str, answering: usize, voters: usize, silent: String },
}

/// Returns the next step. `answers` reports whether a member responds to clients.
pub fn next(
    members: &[Member],
    wanted: &Replacement,
    answers: &dyn Fn(u64) -> bool,
) -> Result<ReplaceStep, ReplaceRefusal> {
    let new = members.iter().find(|member| has_urls(member, &wanted.new_urls));
    let old = old(members, wanted)?;
    let view = OperatorView { members, answers };
    view.check_others(new, old, wanted)?;
    match (new, old) {
        (None, None) if wanted.is_old_removed => Ok(ReplaceStep::Add),
        (None, None) => {
            Err(ReplaceRefusal::NoSuchMember { old: wanted.old.clone(), urls: wanted.new_urls.join(",") })
        }
        (None, Some(old)) if old.is_learner => Err(ReplaceRefusal::Learner { old: wanted.old.clone() }),
        (None, Some(old)) if answers(old.id) => view.after_addition(old).map(|()| ReplaceStep::Add),
        (None, Some(old)) => view.without(old).map(|()| ReplaceStep::RemoveSilent { id: old.id }),
        (Some(new), _) if new.name.is_empty() => Ok(ReplaceStep::AwaitStart { id: new.id }),
        (Some(new), _) if new.name != wanted.new_name => Err(ReplaceRefusal::OtherName {
            urls: wanted.new_urls.join(","),
            name: new.name.clone(),
            wanted: wanted.new_name.clone(),
        }),
        (Some(new), _) if new.is_learner => Ok(ReplaceStep::Promote { id: new.id }),
        (Some(_), Some(_)) if !wanted.is_new_promoted => {
            Err(ReplaceRefusal::VotesAlready { new: wanted.new_name.clone(), old: wanted.old.clone() })
        }
        (Some(_), Some(old)) => Ok(match view.without(old) {
            Ok(()) => ReplaceStep::Remove { id: old.id },
            Err(refusal) => ReplaceStep::AwaitQuorum(refusal),
        }),
        (Some(_), None) => Ok(ReplaceStep::Done),
    }
}

/// Returns the plan shown to the operator before it starts: the remaining steps, one per line.
pub fn shown(step: &ReplaceStep, wanted: &Replacement, grace_s: u64) -> String {
    let Replacement { old, new_name: new, new_urls, .. } = wanted;
    let add = format!("add {new} at {} as a learner", new_urls.join(","));
    let wait = format!("wait until {new} is started");
    let promote = format!("promote {new} when it is in sync");
    let remove = format!("remove {old}");
    let silent = format!("remove {old}, which is unreachable, unless it responds within {grace_s} s");
    let steps = match step {
        ReplaceStep::Add if wanted.is_old_removed => vec![add, wait, promote],
        ReplaceStep::Add => vec![add, wait, promote, remove],
        ReplaceStep::RemoveSilent { .. } => vec![silent, add, wait, promote],
        ReplaceStep::AwaitStart { .. } => vec![wait, promote, format!("{remove}, if it is still a member")],
        ReplaceStep::Promote { .. } => vec![promote, format!("{remove}, if it is still a member")],
        ReplaceStep::Remove { .. } | ReplaceStep::AwaitQuorum(_) => vec![remove],
        ReplaceStep::Done => vec!["nothing to do".to_owned()],
    };
    let lines = steps.iter().enumerate().map(|(at, step)| format!("\n  {}. {step}", at + 1));
    format!("plan:{}", lines.collect::<String>())
}

fn has_urls(member: &Member, sorted: &[String]) -> bool {
    let mut urls = member.peer_ur_ls.clone();
    urls.sort_unstable();
    urls == sorted
}

/// Returns the member to replace, or None if it was removed. The new member may have the same name.
pub fn old<'m>(members: &'m [Member], wanted: &Replacement) -> Result<Option<&'m Member>, ReplaceRefusal> {
    let text = wanted.old.trim_start_matches("0x");
    let by_id = u64::from_str_radix(text, 16).ok().and_then(|id| members.iter().find(|it| it.id == id));
    if let Some(old) = by_id {
        let is_new = has_urls(old, &wanted.new_urls);
        let same = || ReplaceRefusal::SameUrl { old: wanted.old.clone(), urls: wanted.new_urls.join(",") };
        return if is_new { Err(same()) } else { Ok(Some(old)) };
    }
    let named: Vec<&Member> = members
        .iter()
        .filter(|member| member.name == wanted.old && !has_urls(member, &wanted.new_urls))
        .collect();
    match named[..] {
        [] => Ok(None),
        [old] => Ok(Some(old)),
        _ => Err(ReplaceRefusal::Ambiguous { old: wanted.old.clone(), count: named.len() }),
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

struct OperatorView<'a> {
    members: &'a [Member],
    answers: &'a dyn Fn(u64) -> bool,
}

impl OperatorView<'_> {
    fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.is_learner)
    }

    /// Checks that no remaining member has the new one's name, and that no learner exists yet, until the
    /// new member has started.
    fn check_others(
        &self,
        new: Option<&Member>,
        old: Option<&Member>,
        wanted: &Replacement,
    ) -> Result<(), ReplaceRefusal> {
        let stays = |member: &&Member| ![new, old].contains(&Some(*member));
        let mut others = self.members.iter().filter(stays);
        let is_started = new.is_some_and(|new| !new.name.is_empty());
        let same = others.clone().find(|member| !is_started && member.name == wanted.new_name);
        if let Some(Member { id, .. }) = same {
            return Err(ReplaceRefusal::NameTaken { name: wanted.new_name.clone(), id: *id });
        }
        match others.find(|member| new.is_none() && member.is_learner) {
            Some(Member { id, .. }) => Err(ReplaceRefusal::OtherLearner { id: *id }),
            None => Ok(()),
        }
    }

    /// Checks that the new member, once it votes, forms a quorum with the reachable ones, before and after
    /// the removal.
    fn after_addition(&self, old: &Member) -> Result<(), ReplaceRefusal> {
        let (voters, answering) = self.count(None);
        let without_old = self.count(Some(old.id)).1;
        let is_kept = answering >= quorum(voters)
            && answering + 1 >= quorum(voters + 1)
            && without_old + 1 >= quorum(voters);
        if is_kept { Ok(()) } else { Err(self.refusal("the addition of a member")) }
    }

    /// Checks for a quorum to commit the removal, and for a quorum among the remaining members.
    fn without(&self, old: &Member) -> Result<(), ReplaceRefusal> {
        let ((voters, all_answering), (rest, answering)) = (self.count(None), self.count(Some(old.id)));
        let is_kept = all_answering >= quorum(voters) && rest > 0 && answering >= quorum(rest);
        if is_kept { Ok(()) } else { Err(self.refusal("the removal of the old member")) }
    }

    /// Counts the voters, and the reachable voters, except one member.
    fn count(&self, without: Option<u64>) -> (usize, usize) {
        let counted = || self.voters().filter(|member| Some(member.id) != without);
        (counted().count(), counted().filter(|member| (self.answers)(member.id)).count())
    }

    fn refusal(&self, step: &'static str) -> ReplaceRefusal {
        let (voters, answering) = self.count(None);
        let silent: Vec<&str> = self
            .voters()
            .filter(|member| !(self.answers)(member.id))
            .map(|member| member.name.as_str())
            .collect();
        ReplaceRefusal::Quorum { step, answering, voters, silent: silent.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a member list: `a` is a reachable voter, `b!` an unreachable voter, `~c` a learner, `d?` a
    /// learner that has not started. The URL of a member is its name unless specified: `a@url`. Its id is
    /// 0xa0 plus its position.
    fn members(text: &str) -> (Vec<Member>, Vec<u64>) {
        let mut silent = Vec::new();
        let member = |(position, word): (usize, &str)| {
            let id = 0xa0 + position as u64;
            let name = word.trim_matches(['!', '?', '~']);
            let (name, url) = name.split_once('@').unwrap_or((name, name));
            if word.ends_with(['!', '?']) {
                silent.push(id);
            }
            Member {
                id,
                peer_ur_ls: vec![url.to_owned()],
                is_learner: word.starts_with('~') || word.ends_with('?'),
                name: if word.ends_with('?') { String::new() } else { name.to_owned() },
                ..Member::default()
            }
        };
        (text.split_whitespace().enumerate().map(member).collect(), silent)
    }

    /// Returns the next step as text. `flags` lists the flags that describe an earlier run.
    fn step(cluster: &str, old: &str, flags: &str) -> String {
        let (members, silent) = members(cluster);
        let wanted = Replacement {
            old: old.to_owned(),
            new_name: "n".to_owned(),
            new_urls: vec!["n".to_owned()],
            is_old_removed: flags.contains("--removed"),
            is_new_promoted: flags.contains("--promoted"),
        };
        match next(&members, &wanted, &|id| !silent.contains(&id)) {
            Ok(ReplaceStep::AwaitQuorum(refusal)) => format!("wait: {refusal}"),
            Ok(step) => format!("{step:?}").replace("160", "a0").replace("162", "a2").replace("163", "a3"),
            Err(refusal) => format!("{refusal}"),
        }
    }

    #[test]
    fn each_list_of_members_has_one_next_step() {
        for (cluster, old, wanted) in [
            // A reachable member is removed last.
            ("a b c", "c", "Add"),
            ("a b c n?", "c", "AwaitStart { id: a3 }"),
            ("a ~b c n?", "c", "AwaitStart { id: a3 }"),
            ("a b c ~n", "c", "Promote { id: a3 }"),
            ("a b n", "c", "Done"),
            // An unreachable member is removed first.
            ("a b c!", "c", "RemoveSilent { id: a2 }"),
            ("a b c! d e", "c", "RemoveSilent { id: a2 }"),
            // The old member by id, with and without the 0x prefix.
            ("a b c", "a2", "Add"),
            ("a b c!", "0xa2", "RemoveSilent { id: a2 }"),
            // Clusters with one and two members.
            ("a", "a", "Add"),
            ("a b", "b", "Add"),
            // The new member has the old name and a different address.
            ("a b n@c", "n", "Add"),
            ("a b n@c!", "n", "RemoveSilent { id: a2 }"),
        ] {
            assert_eq!(step(cluster, old, ""), wanted, "{cluster}: {old} by n");
        }
        assert_eq!(step("a b", "c", "--removed"), "Add");
    }

    /// Requires --promoted: without it, a second replacement with the name and URL of the first would only
    /// remove members.
    #[test]
    fn a_member_that_votes_takes_the_place_of_another_one_where_it_was_promoted_for_it() {
        for (cluster, old, wanted) in [
            ("a b c n", "c", "Remove { id: a2 }"),
            ("a b c! n", "c", "Remove { id: a2 }"),
            ("a n", "a", "Remove { id: a0 }"),
        ] {
            let refused = step(cluster, old, "");
            assert!(refused.starts_with("n votes already, and "), "{cluster}: {old} by n: {refused}");
            assert_eq!(step(cluster, old, "--promoted"), wanted, "{cluster}: {old} by n");
        }
    }

    #[test]
    fn what_cannot_go_on_is_refused() {
        for (cluster, old, wanted) in [
            ("a b", "c", "c is not a member of the cluster, and no member has the URL n."),
            ("a b c c", "c", "c is the name of 2 members"),
            ("a b ~c", "c", "c is a learner"),
            // Also before an unreachable member is removed.
            ("a b c ~d", "c", "member a3 is a learner, and a cluster accepts one at a time"),
            ("a b c! d?", "c", "member a3 is a learner, and a cluster accepts one at a time"),
            ("a b c n@d", "c", "n is the name of member a3, which stays"),
            ("a b c! n@d", "c", "n is the name of member a3, which stays"),
            ("a b n@d n?", "b", "n is the name of member a2, which stays"),
            ("a b ~other@n", "b", "the member with the URL n has the name other, not n"),
            ("a b n", "a2", "a2 has the URL n"),
            ("a b! c!", "c", "with 1/3 voters up, the removal of the old member would lose"),
            ("a b!", "b", "with 1/2 voters up, the removal of the old member would lose"),
            ("a! b! c", "c", "with 1/3 voters up, the addition of a member would lose"),
        ] {
            let refused = step(cluster, old, "");
            assert!(refused.starts_with(wanted), "{cluster}: {old} by n: {refused}");
        }
        assert!(step("a b ~d", "c", "--removed").starts_with("member a2 is a learner"));
        // After the promotion, a missing quorum is not an error: the step waits.
        for (cluster, old, wanted) in [
            ("a n!", "a", "wait: with 1/2 voters up, the removal"),
            ("a b! c! d n", "d", "wait: with 3/5 voters up, the removal"),
        ] {
            let waits = step(cluster, old, "--promoted");
            assert!(waits.starts_with(wanted), "{cluster}: {old} by n: {waits}");
        }
    }
}
