//! Kinds of requests, for whom a member takes a client, and what it lets users read.

use api::etcdserverpb::RangeRequest;
use state_machine::command::Kind;

use crate::oracle::{Breach, Truth};
use mvcc::{KeyRange, LogIndex};
use state_machine::{AuthTable, Need, WhenExpired};

/// What a member is asked for.
pub(crate) enum Ask {
    Write(Kind),
    /// Waits for a read point.
    Read(RangeRequest),
    /// Answered from the member's store at once.
    Serializable(RangeRequest),
    /// Answered by the leader.
    Lease(LeaseQuestion),
    /// The keys that are attached to a lease, after a read point.
    KeysOfLease(i64),
}

/// A question to the leader.
#[derive(Clone, Debug)]
pub(crate) enum LeaseQuestion {
    Renew(Vec<i64>, WhenExpired),
    Remaining(i64),
}

/// What a member knows of users when it is asked.
pub(crate) struct UserView {
    pub table: AuthTable,
    /// The newest entry that it has applied.
    pub applied: LogIndex,
}

impl UserView {
    /// The user and the auth revision that a command is proposed with. None while permissions are not
    /// checked.
    pub fn caller<'u>(&self, user: &'u str) -> Option<(&'u str, u64)> {
        self.table.is_enabled().then(|| (user, self.table.revision()))
    }

    /// Whether a user may read a range, which the oracle must say as well.
    pub fn may_read(
        &self,
        user: &str,
        range: &RangeRequest,
        store: &mvcc::Store,
        truth: &Truth,
    ) -> Result<bool, Breach> {
        let keys = KeyRange::new(range.key.clone(), range.range_end.clone());
        let need = Need::Keys(state_machine::KeyAccess::Read, keys);
        let grants = self.table.grants_of(user);
        let is_permitted = !self.table.is_enabled()
            || grants.grants().is_some_and(|grants| grants.check(need, store).is_ok());
        let users = truth.users_at(self.applied);
        let foretold = users.is_none_or(|users| users.may_read(user, &range.key, &range.range_end));
        if is_permitted == foretold {
            return Ok(is_permitted);
        }
        Err(format!(
            "{user} may read {range:?} at entry {}: {is_permitted}, the oracle: {foretold}",
            self.applied
        )
        .into())
    }
}
