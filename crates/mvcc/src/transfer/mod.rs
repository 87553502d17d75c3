//! Transfer of a checkpoint to another member: export, stream, staging, install.

mod stream; // the stream's format

mod export; // the sender
mod staging; // the receiver

mod install; // a received store replaces the present one

pub use export::Export;
pub use staging::{Staged, Staging};
