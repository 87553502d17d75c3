//! RangeStream: sizes of chunks, the contents of the last one, one revision throughout.

use super::World;
use super::script::{ScriptStep, read};
use super::world::{refusal, show_range};
use crate::RangeStream;

const TARGET: usize = 1 << 20;

fn stream(world: &World, script: &str, bytes_target: usize) -> RangeStream {
    let Some(ScriptStep::Range(request)) = read(script).pop() else { panic!("not a range: {script}") };
    RangeStream::new(world.asked.store().clone(), request, bytes_target)
}

/// A store of `keys` keys, k000 and so on, each with a value of `value_bytes`.
fn world(keys: usize, value_bytes: usize) -> World {
    let mut world = World::new();
    let value = "v".repeat(value_bytes);
    for key in 0..keys {
        world.play(&format!("put k{key:03}={value}"));
    }
    world
}

/// The number of keys in each chunk, and count and more of the last one. Every key must come once, in order.
fn chunks(world: &World, script: &str, bytes_target: usize) -> (Vec<usize>, i64, bool) {
    let chunks: Vec<_> = stream(world, script, bytes_target).map(|chunk| chunk.unwrap()).collect();
    let (last, others) = chunks.split_last().expect("at least one chunk");
    for chunk in others {
        assert!(chunk.header.is_none() && !chunk.more && chunk.count == 0, "only the last chunk says more");
    }
    assert!(last.header.is_some());
    let keys: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.kvs).map(|kv| kv.key.clone()).collect();
    assert!(keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
    (chunks.iter().map(|chunk| chunk.kvs.len()).collect(), last.count, last.more)
}

#[test]
fn chunks_double_while_they_are_small() {
    let world = world(100, 1);
    for (script, wanted) in [
        ("range *", (vec![10, 20, 40, 30], 100, false)),
        ("range * limit=70", (vec![10, 20, 40], 100, true)),
        ("range * limit=71", (vec![10, 20, 40, 1], 100, true)),
        ("range * limit=7", (vec![7], 100, true)),
        ("range * limit=10", (vec![10], 100, true)),
        ("range * limit=100", (vec![10, 20, 40, 30], 100, false)),
        ("range * limit=200", (vec![10, 20, 40, 30], 100, false)),
        ("range k000..k030", (vec![10, 20], 30, false)),
        ("range k000..k010", (vec![10], 10, false)),
        ("range k005", (vec![1], 1, false)),
        ("range * keys", (vec![10, 20, 40, 30], 100, false)),
        ("range * limit=-1", (vec![100], 100, false)),
        ("range * count", (vec![0], 100, false)),
        ("range * count limit=5", (vec![0], 100, false)),
        ("range x", (vec![0], 0, false)),
    ] {
        assert_eq!(chunks(&world, script, TARGET), wanted, "{script}");
    }
}

#[test]
fn chunks_shrink_when_they_are_large_and_never_below_one_key() {
    let world = world(20, 1000);
    // 10 keys are 10 KB, above twice 2 KB. So 5 and 2 keys follow, and then two at a time, which fit.
    assert_eq!(chunks(&world, "range *", 2000), (vec![10, 5, 2, 2, 1], 20, false));
    // Two keys are above eight times 100 bytes.
    assert_eq!(chunks(&world, "range *", 100), (vec![1; 20], 20, false));
    // 10 KB is between half of 16 KB and twice that, so the size stays.
    assert_eq!(chunks(&world, "range *", 16 << 10), (vec![10, 10], 20, false));
}

#[test]
fn a_chunk_of_large_values_after_small_ones_has_a_bounded_number_of_bytes() {
    let mut world = world(90, 1);
    let value = "v".repeat(1000);
    for key in 90..120 {
        world.play(&format!("put k{key:03}={value}"));
    }
    // The fourth chunk would have 20 large values, the fifth 30.
    let wanted = [vec![10, 20, 40, 20, 5, 2], vec![1; 23]].concat();
    assert_eq!(chunks(&world, "range *", 1000), (wanted, 120, false));
}

#[test]
fn writes_after_the_first_chunk_do_not_show() {
    let mut world = world(30, 1);
    let mut stream = stream(&world, "range *", TARGET);
    assert_eq!(stream.next().unwrap().unwrap().kvs.len(), 10);
    world.play("put k015=new; del k020; put z=1");
    let last = stream.next().unwrap().unwrap();
    assert_eq!((last.kvs.len(), last.count), (20, 30));
    assert!(last.kvs.iter().all(|kv| &kv.value[..] == b"v"));
    assert_eq!(last.header.unwrap().revision, 31, "the newest when the stream began");
    assert!(stream.next().is_none());
}

#[test]
fn an_old_revision_is_kept_and_the_header_tells_the_present() {
    let world = world(30, 1);
    let last = stream(&world, "range * rev=3", TARGET).last().unwrap().unwrap();
    assert_eq!(show_range(&last), "[k000=v@2.2.1 k001=v@3.3.1] of 2 r31");
}

#[test]
fn a_compaction_that_overtakes_the_stream_ends_it() {
    let mut world = world(30, 1);
    let mut stream = stream(&world, "range *", TARGET);
    stream.next().unwrap().unwrap();
    world.play("put z=1; compact 32");
    assert_eq!(stream.next().unwrap().map_err(refusal), Err(api::Error::Compacted));
    assert!(stream.next().is_none());
}

#[test]
fn what_a_range_refuses_a_stream_refuses() {
    let world = world(3, 1);
    for (script, wanted) in
        [("range * rev=9", api::Error::FutureRev), ("range * count rev=9", api::Error::FutureRev)]
    {
        let mut stream = stream(&world, script, TARGET);
        assert_eq!(stream.next().unwrap().map_err(refusal), Err(wanted));
        assert!(stream.next().is_none());
    }
}
