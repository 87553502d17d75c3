//! Panics of the code under test: most of its assertions are laws, so what they say is kept, and nothing else
//! comes of them.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// What the last panic of this thread said, and where.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
    /// Whether this thread runs code under test.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of the code under test quiet and remembers what they said: from the first run on, in the
/// whole process.
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

/// The outcome of `work`, or what its panic said.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_quiet = IS_QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work)).map_err(|_| SAID.with(|said| said.borrow().clone()));
    IS_QUIET.set(was_quiet);
    done
}

/// A run that panicked must not fail others with a second, misleading panic.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
