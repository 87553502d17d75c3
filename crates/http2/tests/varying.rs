//! A connection that caches heads without the varying field is equivalent to one without a cache.

use std::sync::Arc;

use crate::common::*;
use http2::{Connection, Event, Head, Limits, ProcessResult};
use proptest::prelude::*;

const VARYING: &str = "grpc-timeout";

/// One request: additional fields, how each is encoded, and where the varying field is.
#[derive(Clone, Debug)]
struct Request {
    fields: Vec<(String, String)>,
    timeouts: Vec<(usize, String)>,
    /// Encodings of the fields.
    how: Vec<How>,
}

fn any_request() -> impl Strategy<Value = Request> {
    let field = ("[a-c]", prop_oneof!["[x-y]", "[a-z]{20,60}"]);
    let timeout = prop_oneof![8 => "[1-3]{1,2}[mu]", 1 => "[0-9]{14,16}m", 1 => "[ \u{80}]1", 1 => ""];
    let timeouts = proptest::collection::vec((0usize..4, timeout), 0..3);
    let how = prop_oneof![8 => Just(How::Added), 1 => Just(How::Literal), 1 => Just(How::NeverAdded)];
    let how = proptest::collection::vec(how, 10);
    (proptest::collection::vec(field, 0..3), timeouts, how).prop_map(|(fields, timeouts, how)| Request {
        fields,
        timeouts,
        how,
    })
}

impl Request {
    fn list(&self) -> Vec<(&str, &str)> {
        let own = self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut list: Vec<_> = POST.into_iter().chain(own).collect();
        for (place, value) in &self.timeouts {
            list.insert((POST.len() + place).min(list.len()), (VARYING, value));
        }
        list
    }
}

/// Returns the head that a connection decodes from a block. An error is true if the whole connection
/// failed.
fn seen(connection: &mut Connection, bytes: &[u8]) -> Result<Head, bool> {
    connection.receive(bytes);
    let progress = connection.process(0);
    take_output(connection);
    let [Event::Request { stream, head, varying, .. }] = &take_events(connection)[..] else {
        return Err(matches!(progress, ProcessResult::Failed { .. }));
    };
    connection.reset(*stream, http2::ErrorCode::CANCEL);
    let mut head = Head::clone(head);
    if let Some(varying) = varying {
        assert!(head.get(VARYING).is_none(), "the head is without it");
        let value = bytes::Bytes::copy_from_slice(varying.as_bytes());
        head.fields.push(http2::Field { name: VARYING.into(), value });
    }
    // The position of the varying field is not preserved.
    head.fields.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(head)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn heads_are_the_same_with_and_without_the_cache(
        kinds in proptest::collection::vec(any_request(), 1..4),
        order in proptest::collection::vec((0usize..4, 0u8..100), 1..60),
        table_bytes in 100u32..500,
    ) {
        let limits = Limits { header_table_bytes_max: table_bytes, resets_max: 1000, ..Limits::default() };
        let plain = Limits { cached_blocks_max: 0, ..limits.clone() };
        let mut remembers = open(Limits { varying_field: VARYING, ..limits });
        let mut forgets = open(plain);
        let mut encoder = Encoder::new(table_bytes);
        let update = encoder.update();
        for (call, (kind, digit)) in (0u32..).zip(order) {
            let mut request = kinds[kind % kinds.len()].clone();
            if let Some((_, value)) = request.timeouts.first_mut() {
                value.insert_str(0, &digit.to_string());
            }
            let block = encoder.block_as(&request.list(), &request.how);
            let block = if call == 0 { [&update[..], &block].concat() } else { block };
            let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 2 * call + 1, &block);
            prop_assert_eq!(seen(&mut remembers, &bytes), seen(&mut forgets, &bytes));
        }
    }
}

#[test]
fn calls_that_differ_in_the_field_share_their_head() {
    let mut connection = open(Limits { varying_field: VARYING, ..Limits::default() });
    let mut encoder = Encoder::new(4096);
    let mut heads: Vec<Arc<Head>> = Vec::new();
    for call in 0..1000 {
        let timeout = format!("{}u", 10_000 + call);
        let block = encoder.block(&[&POST[..], &[(VARYING, &timeout), ("token", "t")]].concat());
        connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * call + 1, &block));
        assert_eq!(connection.process(0), ProcessResult::NeedBytes);
        let [Event::Request { stream, head, varying, .. }] = &take_events(&mut connection)[..] else {
            panic!()
        };
        connection.reset(*stream, http2::ErrorCode::CANCEL);
        take_output(&mut connection);
        // The first block spells the name in letters, so the field is like any other.
        let value =
            varying.as_ref().map_or_else(|| &head.get(VARYING).unwrap()[..], |value| value.as_bytes());
        assert_eq!(value, timeout.as_bytes());
        if !heads.iter().any(|known| Arc::ptr_eq(known, head)) {
            heads.push(Arc::clone(head));
        }
    }
    // Evicted fields are added again as new entries.
    assert!(heads.len() < 100, "{}", heads.len());
}
