//! Admission control: limits the memory and concurrency of clients' work.

mod memory; // memory left under --memory-limit

mod gate; // weighted passes, shared between clients
mod shares; // shares of a bound per client

mod places; // connections, of which new ones displace unproven ones

mod reads; // the gates of a member, for reads and large commands

pub use base::ClientId;
pub use gate::Pass;
pub use gate::{Bounds, Gate};
pub use memory::follow as follow_memory;
pub use memory::{MemoryLimit, SMALL_GRANT_BYTES};
pub use places::{Holder, Place, Places};
pub use reads::{Admission, CountedAnswer, PAIR_BYTES, ReadGuard, SMALL_BYTES, Small, blocking, charged};
pub use shares::{Share, Shares};
