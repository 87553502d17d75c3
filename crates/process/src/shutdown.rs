//! Process shutdown, graceful or forced.
//!
//! * Graceful (SIGTERM, SIGINT): a task that has to finish its work holds a [`Stop`].
//! * Forced ([`die`]): the durable state may be wrong, so no further message may be sent. One line on
//!   stderr gives the reason, and the process exits.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::log;

/// Exit status after a signal interrupted unfinished work, as after SIGINT.
pub const SIGNALLED: i32 = 130;

/// Notifies many tasks, once, that they have to stop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Sender of a shutdown request.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Creates a connected pair.
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns when the stop was requested, and when the [`Stopper`] is dropped.
    pub async fn stopped(&self) {
        let mut receiver = self.0.clone();
        let _sender_gone = receiver.wait_for(|stopped| *stopped).await;
    }

    /// The channel, for callers that select on it.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }

    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }
}

/// Returns a future of the name of the first termination signal received after this call.
pub fn signalled() -> io::Result<impl Future<Output = &'static str> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "terminated",
            _ = interrupt.recv() => "interrupt",
        }
    })
}

/// Becomes true after the first signal, for which `on_first` is called. The second one terminates the
/// process.
pub fn signals(on_first: impl FnOnce() + Send + 'static) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        if let Ok(first) = signalled() {
            first.await;
            on_first();
            sender.send_replace(true);
        }
        if let Ok(second) = signalled() {
            second.await;
            std::process::exit(SIGNALLED);
        }
    });
    receiver
}

/// Terminates the process immediately. Durability rests on earlier syncs only. Only the first reason is
/// logged: later failures are its consequences.
pub fn die(what: &str) -> ! {
    static DYING: AtomicBool = AtomicBool::new(false);
    if DYING.swap(true, Ordering::SeqCst) {
        loop {
            std::thread::park(); // Until the one who came first has ended the process.
        }
    }
    tracing::error!(target: log::FATAL, error = what, "fatal error; exiting");
    log::flush();
    std::process::exit(1)
}
