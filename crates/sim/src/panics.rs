//! Captures panics of the code under test, since most of its assertions are laws.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// Message and location of this thread's last panic.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
    /// True while this thread runs code under test.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook for the process, which records panics of the code under test instead of
/// printing them.
pub(crate) fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            SAID.with(|said| *said.borrow_mut() = panic.to_string());
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
}

/// Returns the result of `work`, or its panic message.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_quiet = IS_QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work)).map_err(|_| SAID.with(|said| said.borrow().clone()));
    IS_QUIET.set(was_quiet);
    done
}

/// Locks a mutex, ignoring poisoning: a panic in one run must not cause a misleading one in
/// another.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
