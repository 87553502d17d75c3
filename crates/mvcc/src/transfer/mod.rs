//! Transfer of a checkpoint to another member: export, stream, staging, install. Transfer of a history to
//! another kind of store, and from there: history, import.

mod stream; // the stream's format

mod export; // the sender
mod staging; // the receiver

mod install; // a received store replaces the present one

mod history; // all records of one moment, for a backup
mod import; // a store is filled with the history of another one

pub use export::Export;
pub use history::{History, HistoryPart};
pub use import::{Import, ImportedState};
pub use install::Present;
pub use staging::{StagedStore, Staging};
