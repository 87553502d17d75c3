//! Leases, as far as the key space needs to know them: does this id name a live lease?
//!
//! No command grants a lease yet, so none exists and every id is refused. Grants will add ids here, revokes remove
//! them, and puts attach keys; nothing else in this crate asks about leases.

use api::Error;

/// The live leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {}

impl Leases {
    /// Refuses an id that names no live lease. 0 means "no lease" and is always fine.
    pub fn check(&self, id: i64) -> Result<(), Error> {
        if id == 0 { Ok(()) } else { Err(Error::LeaseNotFound) }
    }
}
