//! Admission: what clients may make this process hold and do at one time.

mod memory; // what --memory-limit leaves

mod gate; // passes of a weight, shared between clients
mod shares; // what each client may hold

mod reads; // the gates of a member, for reads and large commands

pub use gate::{Bounds, Gate};
pub use gate::{ClientId, Pass};
pub use memory::follow as follow_memory;
pub use memory::{MemoryLimit, SMALL_GRANT_BYTES};
pub use reads::{Admission, Answered, Caller, PAIR_BYTES, SMALL_BYTES, Small, blocking, charged};
pub use shares::{Share, Shares};
