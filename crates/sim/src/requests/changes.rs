//! Changes of the members that were proposed, and what is known of them.

use std::collections::BTreeMap;

use raft_node::Membership;
use state_machine::command::Change;

use super::clients::RequestId;

/// Requests for changes have ids from here on, up to those of tasks; those of clients below.
pub(crate) const CHANGES: RequestId = 1 << 61;

/// Whether a request is one for a change of the members.
pub(crate) fn is_change(request: RequestId) -> bool {
    (CHANGES..2 * CHANGES).contains(&request)
}

/// A change that a member proposed.
pub(crate) struct ProposedChange {
    pub member: u64,
    pub digest: u64,
    pub change: Change,
    /// Its proposer was answered, or its time is up.
    pub is_over: bool,
}

/// All changes that were proposed, by number.
#[derive(Default)]
pub(crate) struct ProposedChanges {
    pub proposed: BTreeMap<RequestId, ProposedChange>,
    /// The members when they were looked at last.
    pub placed: Membership,
}

impl ProposedChanges {
    pub fn begin(&mut self, founders: Membership) {
        self.placed = founders;
    }

    /// The proposers at a member that went down get no answer.
    pub fn gone_at(&mut self, member: u64) {
        let at_member = self.proposed.values_mut().filter(|proposed| proposed.member == member);
        at_member.for_each(|proposed| proposed.is_over = true);
    }
}
