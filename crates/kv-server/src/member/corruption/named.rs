//! Members that alarms CORRUPT name, and how this one leaves office when it is one of them.
//!
//! They are compared no more: the others write on, so each comparison would find them again, or find no
//! majority while one of the others is away.

use std::collections::BTreeSet;

use crate::member::handle::Member;

/// Gives leadership to a voter whose state is right, as far as is known: followers copy the leader's. Each of
/// two corrupt members would give it to the other one.
pub(crate) async fn give_up_leadership(member: &Member) {
    let named = named(member);
    let mut voters = member.roster.membership().voters.into_iter();
    let is_right = |id: &u64| *id != member.ids.member && !named.contains(id);
    match voters.find(|id| is_right(id) && member.reach.active_since(*id).is_some()) {
        Some(to) => member.hand_over_to(to).await,
        None => tracing::warn!("this leader's state is corrupt, and no other member can take over"),
    }
}

/// The members that alarms CORRUPT name.
pub(super) fn named(member: &Member) -> BTreeSet<u64> {
    state_machine::corrupt_members(&member.store).unwrap_or_default()
}
