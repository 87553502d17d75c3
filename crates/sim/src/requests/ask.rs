//! Kinds of requests, and the members' view of users.

use api::etcdserverpb::RangeRequest;
use state_machine::command::Kind;

use crate::oracle::{Breach, Truth};
use mvcc::{KeyRange, LogIndex};
use state_machine::{AuthTable, Need, WhenExpired};

pub(crate) enum Ask {
    Write(Kind),
    Read(RangeRequest),
    /// Served from the member's store immediately.
    Serializable(RangeRequest),
    Lease(LeaseQuestion),
    /// Returns the keys attached to a lease, after a read index.
    KeysOfLease(i64),
}

#[derive(Clone, Debug)]
pub(crate) enum LeaseQuestion {
    Renew(Vec<i64>, WhenExpired),
    Remaining(i64),
}

/// A member's view of users at the time of a request.
pub(crate) struct UserView {
    pub table: AuthTable,
    pub applied: LogIndex,
}

impl UserView {
    /// Returns the user and auth revision for a proposal. None while auth is disabled.
    pub fn caller<'u>(&self, user: &'u str) -> Option<(&'u str, u64)> {
        self.table.is_enabled().then(|| (user, self.table.revision()))
    }

    /// Reports whether a user may read a range, and checks that the oracle agrees.
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
