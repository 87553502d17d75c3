//! Any committed bytes, as commands of one log.
//!
//! Laws: no panic, no fatal error; two members give the same outcomes; a third without waiting clients ends
//! in the same state.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mvcc::{LogPosition, MemoryBackend, StoreOptions};
use state_machine::{Answer, Genesis, EtcdMachine};

fuzz_target!(|input: &[u8]| {
    let mut members = [member(), member(), member()];
    let mut rest = input;
    let mut index = 0;
    // One byte of length; 255 takes all that is left, so that long commands are reached as well.
    while let Some((length, tail)) = rest.split_first() {
        let length = if *length == u8::MAX { tail.len() } else { usize::from(*length).min(tail.len()) };
        let (command, tail) = tail.split_at(length);
        (rest, index) = (tail, index + 1);
        let at = LogPosition::new(index, 1);
        let command = Bytes::copy_from_slice(command);
        let [asked, again, silent] = members.each_mut();
        let outcome = asked.apply(at, &command, Answer::Wanted).expect("a command never breaks the store");
        assert_eq!(again.apply(at, &command, Answer::Wanted).expect("as before"), outcome);
        assert_eq!(silent.apply(at, &command, Answer::Unwanted).expect("as before"), None);
        for member in &mut members {
            member.end_entry(at).expect("memory does not fail");
        }
    }
    let [asked, others @ ..] = &members;
    for other in others {
        assert_eq!(asked.store().hash_kv(0).unwrap(), other.store().hash_kv(0).unwrap(), "history");
        assert_eq!(asked.store().items(b""), other.store().items(b""), "items");
    }
});

fn member() -> EtcdMachine {
    let (writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    let member = api::etcdserverpb::Member { id: 7, ..Default::default() };
    EtcdMachine::new(writer, &Genesis { members: vec![member] }).unwrap()
}
