//! What clients and watchers send to the checker.

use super::checker::Input;
use tokio::sync::mpsc;

pub enum Message {
    Input(Input),
    /// A watcher cannot go on.
    Failed(String),
}

pub type Messages = mpsc::Sender<Message>;
