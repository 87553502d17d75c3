//! The profile of a process whose allocator is sampled.

use std::alloc::System;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heap_profile::{SamplingAllocator, functions, profile};

#[global_allocator]
static ALLOCATOR: SamplingAllocator<System> = SamplingAllocator::new(System);

const MIB: usize = 1 << 20;

/// One test at a time has the profile for itself.
fn sampled() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    heap_profile::start(64 * 1024);
    alone
}

/// In use and allocated, by stacks through a function.
fn bytes_of(function: &str) -> (u64, u64) {
    let profile = profile().expect("it was started");
    assert_eq!(profile.missing, 0);
    let mut known: HashMap<usize, bool> = HashMap::new();
    let mut is_in = |address: usize| {
        *known
            .entry(address)
            .or_insert_with(|| functions(address).iter().any(|found| found.name.contains(function)))
    };
    let samples = profile.samples.iter().filter(|sample| sample.stack.iter().any(|address| is_in(*address)));
    samples.fold((0, 0), |(in_use, all), sample| (in_use + sample.in_use_bytes, all + sample.allocated_bytes))
}

#[inline(never)]
#[allow(clippy::vec_box, reason = "each of them is to be an allocation")]
fn many_small_ones() -> Vec<Box<[u8; 200]>> {
    black_box((0..100_000).map(|_| Box::new([1; 200])).collect())
}

#[inline(never)]
fn one_that_grows() -> Vec<u8> {
    let mut grown = Vec::new();
    while grown.len() < 32 * MIB {
        grown.extend_from_slice(black_box(&[7; 4096]));
    }
    grown
}

fn is_near(bytes: u64, wanted: usize) -> bool {
    (bytes as f64 / wanted as f64 - 1.0).abs() < 0.25
}

#[test]
fn what_is_in_use_is_named_and_what_was_freed_is_not() {
    let _alone = sampled();
    let small = many_small_ones();
    let grown = one_that_grows();
    // The boxes, and the vector that holds them.
    let (in_use, _) = bytes_of("many_small_ones");
    assert!(is_near(in_use, 100_000 * 208), "{in_use}");
    let (in_use, allocated) = bytes_of("one_that_grows");
    assert!(is_near(in_use, grown.capacity()), "{in_use} of {}", grown.capacity());
    assert!(allocated > in_use, "{allocated} with what it grew out of");
    drop((small, grown));
    for function in ["many_small_ones", "one_that_grows"] {
        let (in_use, allocated) = bytes_of(function);
        assert_eq!(in_use, 0, "{function}");
        assert!(allocated > 0, "{function}");
    }
}

#[inline(never)]
fn passed_on(sender: &mpsc::SyncSender<Vec<u8>>, number: usize) {
    sender.send(vec![1; 64 + number % 5000]).expect("the other end waits");
}

#[test]
fn what_other_threads_free_is_not_in_use() {
    let _alone = sampled();
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let (sender, receiver) = mpsc::sync_channel::<Vec<u8>>(64);
            let receives =
                std::thread::spawn(move || receiver.into_iter().map(|bytes| bytes.len()).sum::<usize>());
            let sends = std::thread::spawn(move || (0..50_000).for_each(|number| passed_on(&sender, number)));
            (sends, receives)
        })
        .collect();
    // Profiles are taken meanwhile.
    for _ in 0..20 {
        assert!(profile().is_some_and(|profile| profile.bytes_between == 64 * 1024));
    }
    for (sends, receives) in pairs {
        sends.join().expect("it sends all");
        assert!(receives.join().expect("it receives all") > 100 * MIB);
    }
    let (in_use, allocated) = bytes_of("passed_on");
    assert_eq!(in_use, 0);
    assert!(is_near(allocated, 4 * 50_000 * 2564), "{allocated}");
}

#[test]
fn names_that_are_looked_up_keep_no_thread_from_allocating() {
    let _alone = sampled();
    let (begun, begins) = mpsc::channel();
    // Not the first byte: an address is one to which a call returns.
    let inside = many_small_ones as *const () as usize + 8;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            backtrace::resolve(inside as *mut c_void, |_| {
                let _awaited_once = begun.send(());
                std::thread::sleep(Duration::from_secs(2));
            });
        });
        begins.recv().unwrap();
        let begin = Instant::now();
        drop(black_box(vec![0_u8; 50 * MIB])); // so large that it is sampled
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    });
}
