//! A sampled profile of the heap: which code allocated what is in use.
//!
//! ```text
//!   alloc ────▶ inner allocator ──▶ one in 512 KiB or so: the caller's stack ──▶ table
//!   dealloc ──▶ an address of the table? it is taken out ──▶ inner allocator
//! ```
//!
//! * Until [`start`], a call of the allocator costs one load and one branch more.
//! * What the profile allocates for itself is not sampled.
//! * An address leaves the table before the inner allocator can give it away again.
//! * The table is bounded. What finds no room in it is counted as missing.
//! * A thread that allocates waits for the table at most, never for names.
//!
//! Does not know what is done with a profile.

mod distance; // which allocations are sampled
mod names; // functions at addresses
mod table; // what is sampled

pub use names::{Function, forget_symbols, from_caller, functions};
pub use table::{Profile, StackSample};

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes between two samples, as Go has them: a gigabyte that is in use has some 2,000.
pub const BYTES_BETWEEN: usize = 512 * 1024;

/// Mean distance of two samples in bytes; 0 while nothing is sampled.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread is at work for the profile.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// An allocator whose allocations are sampled once [`start`] was called.
#[derive(Debug)]
pub struct SamplingAllocator<A>(A);

impl<A> SamplingAllocator<A> {
    pub const fn new(inner: A) -> Self {
        SamplingAllocator(inner)
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe; every call is handed on as it came")]
// SAFETY: each method hands its arguments on to the inner allocator and returns what that returned. A caller
// that keeps this allocator's contract keeps the inner one's. Between, no memory of the caller is touched,
// and nothing unwinds: a full table drops a sample.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SamplingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let address = unsafe { self.0.alloc(layout) };
        note_allocated(address, layout.size());
        address
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let address = unsafe { self.0.alloc_zeroed(layout) };
        note_allocated(address, layout.size());
        address
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        note_freed(address);
        // SAFETY: as above.
        unsafe { self.0.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // What cannot be moved stays where it is, and is missing in the profile.
        note_freed(address);
        // SAFETY: as above.
        let moved = unsafe { self.0.realloc(address, layout, size) };
        note_allocated(moved, size);
        moved
    }
}

#[inline]
fn note_allocated(address: *mut u8, size: usize) {
    let distance = DISTANCE.load(Relaxed);
    if distance != 0 && !address.is_null() {
        sample(address as usize, size, distance);
    }
}

#[inline]
fn note_freed(address: *mut u8) {
    if DISTANCE.load(Relaxed) != 0 && table::may_have(address as usize) {
        forget(address as usize);
    }
}

#[inline(never)]
fn sample(address: usize, size: usize, distance: usize) {
    if distance::is_due(size, distance) {
        unobserved(|| table::add(address, size, distance));
    }
}

#[cold]
#[inline(never)]
fn forget(address: usize) {
    unobserved(|| table::remove(address));
}

/// Runs `work` with the allocations of this thread left out. Nothing is done if the thread is at work for the
/// profile already, or ends.
fn unobserved<T>(work: impl FnOnce() -> T) -> Option<T> {
    let is_first = INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
    if !is_first {
        return None;
    }
    let done = work();
    let _thread_lives = INSIDE.try_with(|inside| inside.set(false));
    Some(done)
}

/// From now on, one allocation in `bytes_between` bytes is sampled. There is no way back: an address that is
/// freed while nothing is sampled would stay in the table.
pub fn start(bytes_between: usize) {
    assert!(bytes_between > 0, "a distance of samples");
    unobserved(table::prepare);
    DISTANCE.store(bytes_between, Relaxed);
}

/// What was sampled so far. None before [`start`].
pub fn profile() -> Option<Profile> {
    let distance = DISTANCE.load(Relaxed);
    if distance == 0 { None } else { unobserved(|| table::profile(distance)) }
}
