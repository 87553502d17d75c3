//! Replication: commands in, the same commands out on every member, in one order, once each is durable on a quorum.
//!
//! ```text
//!   Handle ──▶ inbox ──▶ driver ──events──▶ Core ──effects──▶ send now ─────────▶ Transport
//!                                            (pure)        ├─▶ persist job ─▶ log thread ─receipt─▶ Transport, driver
//!                                                          └─▶ committed ───▶ apply thread ─▶ StateMachine ─▶ replies
//! ```
//!
//! * The only user of raft-rs: none of its types appears in this crate's interface.
//! * A message that promises durability leaves only after the sync it promises: it sits inside the persist job,
//!   and the receipt of a successful sync is the only door out.
//! * A proposal is answered only after its command was applied here; a read point only when everything up to it was.
//! * After a failed write, sync or apply nothing more is acknowledged: `on_fatal` is called and the threads end.
//!
//! Knows nothing of what a command means, of sockets, or of members' addresses.

mod config; // what a member is told at start, every bound with its reason
mod error; // what can go wrong, as the caller may tell it apart
mod handle; // propose, read, receive, status: the face that others see
mod interface; // the traits that the process supplies: state machine, transport, observer
mod start; // brings a member up from its log

pub use config::{Config, Limits};
pub use error::{ProposeError, ReadError, StartError, TransferError};
pub use handle::{Handle, Role, Status};
pub use interface::{Answer, Fatal, Lane, LogSync, Observer, Position, StateMachine, Transport};
pub use start::{Log, Pump, Threads, start};
