//! Members that alarms CORRUPT name, and how this one leaves office when it is one of them.
//!
//! They are compared no more: the others write on, so each comparison would find them again, or find no
//! majority while one of the others is away.

use std::collections::BTreeSet;

use crate::member::handle::Member;

/// Gives leadership to a voter whose state is right, as far as is known: followers copy the leader's. Each of
/// two corrupt members would give it to the other one. Those that answer and are in sync are asked in turn.
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
    tracing::warn!("this leader's state is corrupt, and no other member can take over");
}

/// The members that alarms CORRUPT name.
pub(super) fn named(member: &Member) -> BTreeSet<u64> {
    state_machine::corrupt_members(&member.store).unwrap_or_default()
}
