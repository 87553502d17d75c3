//! Locks and elections, made of keys with leases, transactions and watches.
//!
//! ```text
//!   name/ ─┬─ name/5a   create_revision 7    owner, or leader
//!          ├─ name/3    create_revision 9    waits until the keys before it are deleted
//!          └─ name/1f   create_revision 12
//! ```
//!
//! * A caller's key is `name/lease`, the lease in hexadecimal digits. It is attached to the lease, so it is
//!   deleted when the lease expires.
//! * The key with the smallest create_revision below `name/` owns the lock, or leads. Each other caller
//!   waits until the key created last before its own is deleted, and checks again.
//! * A waiting call holds one watcher; there is no polling.
//! * When a waiting call is cancelled or reaches its deadline, its key is deleted.
//! * Errors arrive as UNKNOWN with the text of the inner call: etcd runs these services on its own client.
//!
//! Both services share the keys of a name, as in etcd.

mod follow; // the events of one key or prefix
mod inner; // the inner calls
mod keys; // keys of a name, and their order

mod attended; // calls that clean up after their client disconnects
mod waiting; // waiting for the preceding keys

mod election; // Campaign, Proclaim, Leader, Resign
mod lock; // Lock, Unlock
mod observe; // Observe

pub use election::Election;
pub use lock::Lock;
pub use waiting::WaitingPlaces;
