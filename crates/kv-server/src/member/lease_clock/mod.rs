//! Time for leases: the leader records renewals and revokes the leases whose time is over.
//!
//! ```text
//!   client ─▶ peer::LeaseService: batch ─┬─ this member leads ─▶ LeaderLeases ─▶ LeaseRenew, or from memory
//!                                        └─ another one does ──▶ its LeaderLeases
//!   when there is work, on the leader: unrecorded leases ─▶ LeaseRenew   ExpiryQueue ─▶ LeaseExpire
//! ```
//!
//! * The lease clock of a member is never ahead of that of the leader whose command it applied last
//!   ([`ClockAnchor`]). So a deadline comes no earlier on a new leader.
//! * A renewal is answered after the leader has recorded it, or has confirmed its leadership while a recorded
//!   renewal covers it.
//! * What the leader decides, without tasks and clocks, is in `state_machine::{LeaderTurns, RenewalBatch}`.
//!
//! See docs/decisions/0040.

mod leader; // the lease clock of a member, and what only the leader does
mod run; // the leader's turns

pub(crate) use leader::{ClockAnchor, LeaderLeases, LeaseError};
pub(crate) use run::run;
