//! What is sampled: addresses in use, and the stacks that allocated them.
//!
//! * An address is in the filter before its owner knows it, and until after it is out of the table. So a
//!   thread that frees it finds it.
//! * Nothing here is called by a thread that is in here already.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::distance::weight;

/// Frames of a stack, the innermost first; further ones are left out.
const FRAMES_MAX: usize = 64;
/// 128 GiB in use at the usual distance; some 15 MB.
const IN_USE_MAX: usize = 1 << 18;
/// Some 10 MB. A program has far fewer.
const STACKS_MAX: usize = 1 << 14;

/// How many addresses in use share a place. Most frees look at one of these, and at nothing else. 512 KiB.
static FILTER: [AtomicU16; FILTER_PLACES] = [const { AtomicU16::new(0) }; FILTER_PLACES];
const FILTER_PLACES: usize = 1 << 18;

static TABLE: Mutex<Option<AllocationTable>> = Mutex::new(None);

/// Keys are addresses: nothing that a client chooses.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

#[derive(Default)]
struct AllocationTable {
    in_use: Map<usize, InUse>,
    stacks: Map<Box<[usize]>, usize>,
    /// By number of stack.
    counts: Vec<StackCounts>,
    missing: u64,
}

struct InUse {
    stack: usize,
    size: usize,
    weight: f64,
}

/// Estimates of all allocations of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct StackCounts {
    objects: f64,
    bytes: f64,
    freed_objects: f64,
    freed_bytes: f64,
}

/// What the process allocated, estimated from samples.
#[derive(Clone, Debug)]
pub struct Profile {
    pub samples: Vec<StackSample>,
    /// Mean bytes between two samples.
    pub bytes_between: usize,
    /// Samples that found no room.
    pub missing: u64,
}

/// What one stack allocated.
#[derive(Clone, Debug)]
pub struct StackSample {
    /// Addresses to which the frames return, the innermost first.
    pub stack: Vec<usize>,
    pub allocated_objects: u64,
    pub allocated_bytes: u64,
    pub in_use_objects: u64,
    pub in_use_bytes: u64,
}

fn place(address: usize) -> &'static AtomicU16 {
    let mixed = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &FILTER[(mixed >> (64 - FILTER_PLACES.trailing_zeros())) as usize]
}

/// False if the address is not in the table.
#[inline]
pub fn may_have(address: usize) -> bool {
    place(address).load(Relaxed) != 0
}

fn table() -> MutexGuard<'static, Option<AllocationTable>> {
    // Nothing in here panics halfway through a change.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room for samples.
pub fn prepare() {
    table().get_or_insert_default();
}

/// Adds an allocation by the caller.
pub fn add(address: usize, size: usize, distance: usize) {
    let (mut frames, mut count) = ([0; FRAMES_MAX], 0);
    walk(|address| {
        frames[count] = address;
        // The outermost frame returns nowhere.
        count += usize::from(address != 0);
        count < FRAMES_MAX
    });
    let weight = weight(size, distance);
    if let Some(table) = table().as_mut() {
        table.add(address, &frames[..count], size, weight);
    }
}

/// The addresses to which the frames of this thread return, the innermost first, while `goes_on`.
///
/// Not [`backtrace::trace`]: it waits while names are looked up, which takes half a second at first, and
/// every thread that allocates would wait with it.
#[allow(unsafe_code, reason = "a walk that waits for no other thread is unsafe to call")]
fn walk(mut goes_on: impl FnMut(usize) -> bool) {
    // SAFETY: the lock that is left out protects the API of Windows, and names, which a walk does not look
    // up. On Unix, the walk is `_Unwind_Backtrace`, which any number of threads may call at the same time.
    // The closure does not unwind: it indexes an array within its bounds.
    unsafe { backtrace::trace_unsynchronized(|frame| goes_on(frame.ip() as usize)) }
}

/// The address is about to be freed.
pub fn remove(address: usize) {
    if let Some(table) = table().as_mut() {
        table.remove(address);
    }
}

pub fn profile(bytes_between: usize) -> Profile {
    let table = table();
    let (mut samples, mut missing) = (Vec::new(), 0);
    if let Some(table) = table.as_ref() {
        samples.extend(table.stacks.iter().map(|(stack, number)| table.counts[*number].sample(stack)));
        missing = table.missing;
    }
    Profile { samples, bytes_between, missing }
}

impl AllocationTable {
    fn add(&mut self, address: usize, stack: &[usize], size: usize, weight: f64) {
        let known = self.stacks.get(stack).copied();
        if self.in_use.len() >= IN_USE_MAX || (known.is_none() && self.stacks.len() >= STACKS_MAX) {
            self.missing += 1;
            return;
        }
        let stack = known.unwrap_or_else(|| {
            let number = self.counts.len();
            self.counts.push(StackCounts::default());
            self.stacks.insert(stack.into(), number);
            number
        });
        let counts = &mut self.counts[stack];
        counts.objects += weight;
        counts.bytes += weight * size as f64;
        place(address).fetch_add(1, Relaxed);
        // One that was freed unseen, while its thread was at work for the profile.
        if let Some(earlier) = self.in_use.insert(address, InUse { stack, size, weight }) {
            self.freed(address, &earlier);
        }
    }

    fn remove(&mut self, address: usize) {
        if let Some(freed) = self.in_use.remove(&address) {
            self.freed(address, &freed);
        }
    }

    fn freed(&mut self, address: usize, freed: &InUse) {
        place(address).fetch_sub(1, Relaxed);
        let counts = &mut self.counts[freed.stack];
        counts.freed_objects += freed.weight;
        counts.freed_bytes += freed.weight * freed.size as f64;
    }
}

impl StackCounts {
    fn sample(&self, stack: &[usize]) -> StackSample {
        let whole = |estimate: f64| estimate.max(0.0).round() as u64;
        StackSample {
            stack: stack.to_vec(),
            allocated_objects: whole(self.objects),
            allocated_bytes: whole(self.bytes),
            in_use_objects: whole(self.objects - self.freed_objects),
            in_use_bytes: whole(self.bytes - self.freed_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter is one for all.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_freed_is_no_longer_in_use_and_was_allocated() {
        let _alone = ALONE.lock().unwrap();
        let mut table = AllocationTable::default();
        let (a, b) = (0x7001_0000, 0x7002_0000);
        table.add(a, &[1, 2], 100, 2.0);
        table.add(b, &[1, 2], 10, 4.0);
        assert!(may_have(a) && may_have(b));
        table.remove(a);
        table.remove(a);
        assert!(!may_have(a), "it left the filter with the table");
        let sample = table.counts[0].sample(&[1, 2]);
        assert_eq!((sample.allocated_objects, sample.allocated_bytes), (6, 240));
        assert_eq!((sample.in_use_objects, sample.in_use_bytes), (4, 40));
        // The address was given away again without having been seen free.
        table.add(b, &[3], 7, 1.0);
        table.remove(b);
        assert!(!may_have(b) && table.in_use.is_empty());
    }

    #[test]
    fn a_full_table_counts_what_is_missing() {
        let _alone = ALONE.lock().unwrap();
        let mut table = AllocationTable::default();
        for number in 0..STACKS_MAX + 3 {
            table.add(0x1_0000_0000 + number * 64, &[number], 1, 1.0);
        }
        assert_eq!((table.stacks.len(), table.in_use.len(), table.missing), (STACKS_MAX, STACKS_MAX, 3));
        for number in 0..STACKS_MAX {
            table.remove(0x1_0000_0000 + number * 64);
        }
        assert!(table.in_use.is_empty());
    }
}
