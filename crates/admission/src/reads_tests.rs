//! Memory held by reads, its limits, and the rest after a read.

use std::sync::atomic::AtomicU32;

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{RangeRequest, RequestOp, TxnRequest};
use prost::Message;

use super::*;

const CLIENT: ClientId = ClientId::alone(1);
/// The largest memory of a response.
const LARGEST: u64 = ANSWER_BYTES - ANSWER_RESERVE;

fn admission() -> Admission {
    Admission::new(Duration::from_secs(7), Arc::default())
}

/// Acquires `steps` MiB, one after the other.
fn hold(meter: &dyn Meter, steps: u64) -> Result<u64, Failure> {
    (0..steps).try_for_each(|_| meter.hold(0, 1 << 20))?;
    Ok(steps)
}

#[tokio::test]
async fn a_read_takes_what_it_needs_and_gives_it_back() {
    let admission = admission();
    let (steps, memory) = admission.read(CLIENT, 0, |meter| hold(meter, 9)).await.unwrap();
    assert_eq!((steps, memory.weight()), (9, 9 << 20));
    let frame = charged(Bytes::from_static(b"sent"), Some(memory));
    assert_eq!(admission.answers.gauges().0, 4);
    let rest = frame.slice(2..);
    drop(frame);
    assert_eq!(admission.answers.gauges().0, 4, "some of it was not sent");
    drop(rest);
    assert_eq!((admission.answers.gauges(), admission.turns.gauges()), ((0, 0), (0, 0)));
}

#[tokio::test]
async fn a_read_beyond_the_whole_budget_is_refused_with_its_limit() {
    let admission = admission();
    let steps = LARGEST >> 20;
    let (_, memory) = admission.read(CLIENT, 0, move |meter| hold(meter, steps)).await.unwrap();
    drop(memory);
    let refused = admission.read(CLIENT, 0, move |meter| hold(meter, steps + 1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains(&LARGEST.to_string()), "{}", refused.message());
    assert_eq!((admission.answers.gauges(), admission.turns.gauges()), ((0, 0), (0, 0)));
}

#[tokio::test]
async fn a_read_that_outgrows_its_bound_ends_with_nothing_held() {
    let admission = admission();
    for estimate in [0, 20 << 20] {
        for steps in [9, 10] {
            let read = move |meter: &dyn Meter| hold(meter, steps);
            let answered = admission.read_up_to(Some(9 << 20), CLIENT, estimate, read).await.unwrap();
            assert_eq!(answered.is_some(), steps == 9, "{steps} MiB, estimated as {estimate}");
            drop(answered);
            assert_eq!((admission.answers.gauges(), admission.turns.gauges()), ((0, 0), (0, 0)));
        }
    }
}

#[tokio::test]
async fn a_read_that_has_another_form_does_not_wait_for_what_others_hold() {
    let admission = admission();
    let unread = admission.answers.enter(ClientId::alone(2), LARGEST).await.unwrap();
    let read = |meter: &dyn Meter| hold(meter, 9);
    let answered = admission.read_up_to(Some(64 << 20), CLIENT, 9 << 20, read).await.unwrap();
    assert!(answered.is_none());
    assert_eq!(admission.answers.gauges(), (LARGEST, 0));
    drop(unread);
    let answered = admission.read_up_to(Some(64 << 20), CLIENT, 9 << 20, read).await.unwrap();
    assert_eq!(answered.map(|(steps, _)| steps), Some(9));
}

#[tokio::test]
async fn a_read_that_cannot_grow_begins_again_with_more() {
    let admission = admission();
    let attempts = Arc::new(AtomicU32::new(0));
    let in_the_way = admission.answers.enter(ClientId::alone(2), LARGEST).await.unwrap();
    let counted = Arc::clone(&attempts);
    let mut reading = std::pin::pin!(admission.read(CLIENT, 0, move |meter| {
        counted.fetch_add(1, Ordering::Relaxed);
        hold(meter, 8)
    }));
    // It waits for more than the free memory, and holds none until then.
    while attempts.load(Ordering::Relaxed) == 0 || admission.answers.gauges().1 == 0 {
        tokio::select! {
            _ = &mut reading => panic!("there is no room for it"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(in_the_way);
    assert_eq!(reading.await.unwrap().0, 8);
    assert!(attempts.load(Ordering::Relaxed) >= 2);
}

/// The clock is paused, so waiting for another client's response would never succeed.
#[tokio::test(start_paused = true)]
async fn a_read_of_everything_next_to_an_unread_answer_delays_no_small_one() {
    let admission = Arc::new(admission());
    let (_, unread) = admission.read(CLIENT, 0, |meter| hold(meter, 6)).await.unwrap();
    let everything = Arc::clone(&admission);
    let everything = tokio::spawn(async move {
        everything.read(ClientId::alone(2), 200 << 20, |meter| hold(meter, LARGEST >> 20)).await.map(drop)
    });
    while admission.answers.gauges().1 == 0 {
        tokio::task::yield_now().await;
    }
    let began = tokio::time::Instant::now();
    for client in 3..20 {
        let read = admission.read(ClientId::alone(client), 0, |meter| hold(meter, 2));
        read.await.expect("it is below the reserve");
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(unread);
    everything.await.unwrap().expect("all is free now");
}

#[tokio::test(start_paused = true)]
async fn reads_whose_estimates_are_far_above_their_need_run_at_the_same_time() {
    let admission = Arc::new(admission());
    let began = tokio::time::Instant::now();
    let mut held = Vec::new();
    for client in 1..=4 {
        // Keys only, from a store with large values.
        let read = admission.read(ClientId::alone(client), 300 << 20, |meter| hold(meter, 1));
        held.push(read.await.expect("all four fit"));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_read_ends_when_its_caller_has_gone() {
    let admission = admission();
    let begun = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&begun);
    {
        // A read that only a cancellation stops.
        let endless = move |meter: &dyn Meter| -> Result<(), Failure> {
            loop {
                seen.store(true, Ordering::Relaxed);
                meter.check()?;
            }
        };
        let mut reading = std::pin::pin!(admission.read(CLIENT, 0, endless));
        while !begun.load(Ordering::Relaxed) {
            tokio::select! {
                _ = &mut reading => panic!("it never ends"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    while (admission.answers.gauges(), admission.turns.gauges()) != ((0, 0), (0, 0)) {
        tokio::task::yield_now().await;
    }
}

/// For reads, and for conversions of long messages.
#[tokio::test]
async fn one_connection_cannot_take_all_turns() {
    for is_read in [true, false] {
        let admission = Arc::new(admission());
        let (turns, at_once) = match is_read {
            true => (&admission.turns, MAX_CONCURRENT_READS / 2),
            false => (&admission.conversions, MAX_CONCURRENT_CONVERSIONS / 2),
        };
        let turns = Arc::clone(turns);
        let release = Arc::new(AtomicBool::new(false));
        let mut greedy = Vec::new();
        for _ in 0..50 {
            let (admission, release) = (Arc::clone(&admission), Arc::clone(&release));
            greedy.push(tokio::spawn(async move {
                let here = std::thread::current().id();
                let wait = move || {
                    while !release.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    assert_ne!(std::thread::current().id(), here, "it delays other tasks");
                };
                match is_read {
                    true => {
                        let read = move |_: &dyn Meter| {
                            wait();
                            Ok(())
                        };
                        admission.read(CLIENT, 0, read).await.map(drop)
                    }
                    false => admission.convert(CLIENT, wait).await,
                }
            }));
        }
        while turns.gauges() != (at_once, 50 - at_once as usize) {
            tokio::task::yield_now().await;
        }
        let other = ClientId::alone(2);
        match is_read {
            true => admission.read(other, 0, |_| Ok(())).await.map(drop),
            false => admission.convert(other, || ()).await,
        }
        .expect("a turn is left for others");
        release.store(true, Ordering::Relaxed);
        for call in greedy {
            call.await.unwrap().unwrap();
        }
    }
}

/// The clock is paused, so waiting calls never time out.
#[tokio::test(start_paused = true)]
async fn long_transactions_have_one_bound_and_leave_room_to_shorter_ones() {
    const LONGEST: usize = 163_840;
    let admission = admission();
    let held = admission.txn(CLIENT, LONGEST).await.unwrap();
    for client in [CLIENT, ClientId::alone(2)] {
        let waiting = tokio::time::timeout(WAIT_MAX / 2, admission.txn(client, LONGEST));
        assert!(waiting.await.is_err(), "two of them exceed the bound");
        assert_eq!(admission.txns.gauges(), (LONGEST as u64 * TXN_FIELD_BYTES, 0), "it has left the line");
    }
    let began = tokio::time::Instant::now();
    let _shorter = admission.txn(ClientId::alone(3), 4_000).await.expect("a shorter one goes on");
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(held);
    let _next = admission.txn(ClientId::alone(2), LONGEST).await.expect("there is room now");
}

#[test]
fn a_read_in_the_calling_task_looks_at_few_keys() {
    let (mut writer, store, _) =
        mvcc::open(Box::new(mvcc::MemoryBackend::new()), mvcc::StoreOptions::default()).unwrap();
    let mut request = writer.begin();
    for key in 0..50_000u32 {
        request.put(&key.to_be_bytes(), b"value", 0);
    }
    let before = request.finish();
    // Afterwards only the last key exists, and every leaf of the index has changed.
    let doomed =
        mvcc::KeyRange::new(Bytes::from_static(b"\0"), Bytes::copy_from_slice(&49_999u32.to_be_bytes()));
    writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
    let all = mvcc::KeyRange::all();
    let count = mvcc::RangeOptions { limit: 0, fetch: mvcc::Fetch::CountOnly };
    let counted = store.range_metered(&all, before, &count, &Small::default());
    assert!(matches!(counted, Err(Error::Interrupted)), "50,000 keys are looked at in the calling task");
    let first = mvcc::RangeOptions { limit: 1, fetch: mvcc::Fetch::Full };
    let found = store.range_metered(&all, 0, &first, &Small::default()).unwrap();
    assert_eq!((found.count, found.kvs.len()), (1, 1), "leaves without a live key are passed as a whole");
}

/// Large values, small ones scattered among large ones, and small ones next to each other.
fn mixed_store() -> mvcc::Store {
    let (mut writer, store, _) =
        mvcc::open(Box::new(mvcc::MemoryBackend::new()), mvcc::StoreOptions::default()).unwrap();
    for number in 0..30u32 {
        let mut request = writer.begin();
        request.put(format!("large{number}").as_bytes(), &vec![b'v'; 300_000], 0);
        request.put(format!("scattered{number}").as_bytes(), &[b'v'; 50], 0);
        for key in 0..1000u32 {
            request.put(format!("small{number}-{key}").as_bytes(), &[b'v'; 50], 0);
        }
        request.finish();
    }
    store
}

/// Allocated bytes of a response: slices of one block share it, so each byte counts at most once.
fn bytes_of_pairs(kvs: &[api::mvccpb::KeyValue]) -> u64 {
    let pair = |kv: &api::mvccpb::KeyValue| kv.key.len() + kv.value.len() + size_of_val(kv);
    kvs.iter().map(|kv| pair(kv) as u64).sum()
}

#[tokio::test]
async fn an_answer_that_is_held_whole_has_memory_for_its_pairs_and_its_encoded_form() {
    let (admission, store) = (admission(), mixed_store());
    let sorted = RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        sort_order: SortOrder::Descend as i32,
        sort_target: SortTarget::Value as i32,
        ..RangeRequest::default()
    };
    let scattered =
        RangeRequest { key: "scattered".into(), range_end: "scattered~".into(), ..sorted.clone() };
    let small = RangeRequest { key: "small".into(), range_end: "small~".into(), ..sorted.clone() };
    let requests = [
        RangeRequest { limit: 7, ..sorted.clone() },
        RangeRequest { min_mod_revision: 9, ..sorted.clone() },
        RangeRequest { keys_only: true, ..sorted.clone() },
        RangeRequest { keys_only: true, sort_target: SortTarget::Key as i32, ..small.clone() },
        scattered,
        small,
        sorted.clone(),
    ];
    for request in requests {
        let (store, asked) = (store.clone(), request.clone());
        let read = admission.read(CLIENT, 0, move |meter| state_machine::range(&store, &asked, meter));
        let (response, memory) = read.await.unwrap();
        let needed = bytes_of_pairs(&response.kvs) + response.encoded_len() as u64;
        assert!(memory.weight() >= needed, "{} of {needed} bytes for {request:?}", memory.weight());
    }
    let twice = vec![RequestOp { request: Some(Op::RequestRange(sorted)) }; 2];
    let txn = TxnRequest { success: twice, ..TxnRequest::default() };
    let read = admission.read(CLIENT, 0, move |meter| state_machine::read_txn(&store, &txn, meter));
    let (response, memory) = read.await.unwrap();
    let needed = 2 * response.encoded_len() as u64;
    assert!(memory.weight() >= needed, "{} of {needed} bytes for a transaction", memory.weight());
}
