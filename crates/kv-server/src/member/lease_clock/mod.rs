//! Lease time: the leader records renewals and revokes expired leases.
//!
//! ```text
//!   client ─▶ peer::LeaseService: batch ─┬─ this member leads ───▶ LeaderLeases ─▶ LeaseRenew, or memory
//!                                        └─ another member leads ─▶ its LeaderLeases
//!   periodic, on the leader: unrecorded leases ─▶ LeaseRenew   ExpiryQueue ─▶ LeaseExpire
//! ```
//!
//! * A member's lease clock ([`ClockAnchor`]) is never ahead of the leader's that proposed its last applied
//!   lease command. Therefore a lease does not expire earlier on a new leader.
//! * A renewal is acknowledged after the leader has recorded it, or has confirmed its leadership while a
//!   recorded renewal covers it.
//! * The leader's decisions, without tasks and clocks, are in `state_machine::{LeaderTurns, RenewalBatch}`.
//!
//! See docs/decisions/0040.

mod leader; // lease clock and leader operations
mod run; // periodic work of the leader

pub(crate) use leader::{ClockAnchor, LeaderLeases, LeaseError};
pub(crate) use run::run;
