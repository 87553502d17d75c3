//! Panics of the code under test: most of its assertions are laws, so what they say is kept, and nothing else comes of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// What the last panic of this thread said, and where.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panics quiet and remembers what they said: from the first story on, in the whole process.
pub(crate) fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| SAID.with(|said| *said.borrow_mut() = panic.to_string())));
    });
}

/// The outcome of `work`, or what its panic said.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| SAID.with(|said| said.borrow().clone()))
}

/// A story that panicked must not fail others with a second, misleading panic.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
