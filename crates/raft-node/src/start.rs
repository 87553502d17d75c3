//! Brings a member up: log read back, core built, threads started.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Config, Fatal, Handle, Observer, StartError, StateMachine, Transport};

/// An opened log together with what opening it found.
pub struct Log<F> {
    _fs: PhantomData<F>,
}

/// Completes replies on the async runtime: many per wake-up. Spawn [`Pump::run`] there; without it nobody who
/// shared an entry with others is ever answered.
pub struct Pump<O> {
    _outcome: PhantomData<fn() -> O>,
}

impl<O: Send + 'static> Pump<O> {
    /// Runs until the member has stopped.
    pub async fn run(self) {}
}

/// The member's threads.
pub struct Threads {}

impl Threads {
    /// Waits until all have ended, which they do after [`Handle::stop`] or a fatal error. Blocks the thread.
    pub fn join(self) {}
}

/// Starts the member and returns at once; it joins its cluster, or elects itself if it is alone.
///
/// `on_fatal` is called at most once, from one of the member's threads.
pub fn start<S: StateMachine, F: Send + 'static>(
    config: Config,
    log: Log<F>,
    state_machine: S,
    transport: Arc<dyn Transport>,
    on_fatal: Box<dyn Fn(Fatal) + Send + Sync>,
    observer: Arc<dyn Observer>,
) -> Result<(Handle<S::Outcome>, Pump<S::Outcome>, Threads), StartError> {
    let _ = (log, state_machine, transport, on_fatal, observer);
    Err(StartError::Config { reason: format!("member {} cannot start yet", config.id) })
}
