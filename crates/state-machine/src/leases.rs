//! Leases, as far as puts need them: whether an id is a live lease.
//!
//! No command grants a lease yet, so every id is refused. Grants will add ids here, revokes will remove them,
//! and puts will attach keys.

use api::Error;

/// The live leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {}

impl Leases {
    /// Refuses an id that is not a live lease. 0 means "no lease" and is accepted.
    pub fn check(&self, id: i64) -> Result<(), Error> {
        if id == 0 { Ok(()) } else { Err(Error::LeaseNotFound) }
    }
}
