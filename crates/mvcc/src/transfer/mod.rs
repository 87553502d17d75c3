//! Transfer of a checkpoint to another member: export, stream, staging, install. Transfer of a history
//! to another kind of store, and from there: history, import.

mod stream; // the stream's format

mod export; // the sender
mod staging; // the receiver

mod install; // replaces the current store with a received one

mod history; // all records at a revision, for a backup
mod import; // fills a store with the history of another one

pub use export::Export;
pub use history::{HistoryPart, HistoryReader};
pub use import::{Import, ImportedState};
pub use install::Present;
pub use staging::{StagedStore, Staging};
