//! Revisions: the store's logical clock.
//!
//! `main` counts requests that changed something; `sub` numbers the changes inside one request, from 0. An
//! empty store is at main revision 1, so the first change is 2.0. Clients see `main` only; `sub` orders
//! records in blocks and enters the hash.

use std::fmt;

/// The last main revision. One below the largest number, so that the revision after any one, which watchers
/// ask for, is a number. No request is to be begun at this revision.
pub const REVISION_MAX: i64 = i64::MAX - 1;

/// Revision of one change. Ordered by `main`, then `sub`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    pub main: i64,
    pub sub: i64,
}

impl Revision {
    /// Greater than every revision that can be written.
    pub(crate) const MAX: Revision = Revision { main: i64::MAX, sub: i64::MAX };

    /// The first change of request `main`.
    pub const fn first_of(main: i64) -> Self {
        Revision { main, sub: 0 }
    }

    /// The next change of the same request. No revision is between the two.
    pub(crate) const fn next(self) -> Self {
        Revision { main: self.main, sub: self.sub + 1 }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}
