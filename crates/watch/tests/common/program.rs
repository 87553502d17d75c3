//! Bytes as requests of watch streams, decoded as the service decodes them, while keys change, history is
//! compacted and stores are installed. Shared by a property test and the fuzz target.

use api::etcdserverpb::WatchRequest;
use api::etcdserverpb::watch_request::RequestUnion;
use prost::Message;
use watch::CreateRequest;

use super::world::{Entry, Operation, STREAMS, World};

/// Plays any bytes, and checks what `world` checks.
pub fn play(input: &[u8]) {
    let mut world = World::new();
    let mut rest = input;
    // Two bytes: what happens on which stream, and its size or the length of the request.
    while let [what, size, tail @ ..] = rest {
        rest = tail;
        let (stream, size) = (usize::from(what >> 4) % STREAMS, usize::from(*size));
        let operation = match what % 16 {
            0..=4 => {
                let (message, tail) = rest.split_at(size.min(rest.len()));
                rest = tail;
                request(&world, stream, message)
            }
            5 | 6 => Some(Operation::Entry(Entry::Request(vec![((what >> 4) % 8, size % 60)], vec![]))),
            7 => Some(Operation::Entry(Entry::Request(vec![], vec![(what >> 4) % 8, (size % 8) as u8]))),
            8 => Some(Operation::Entry(Entry::Compact((size % 100) as i64))),
            9 | 10 => Some(Operation::Apply(size % 8)),
            11 => Some(Operation::Steps(size % 8)),
            12 if size == 0 => Some(Operation::Install),
            12 if size == 1 => Some(Operation::Periodic),
            12 if size == 2 => Some(Operation::Reconnect(stream)),
            12 | 13 => Some(Operation::Turn(size % 4)),
            _ => Some(Operation::Read(stream, 4 * size + 1)),
        };
        operation.into_iter().for_each(|operation| world.run(operation));
    }
    world.finish();
}

/// Converts a message to a request to the hub. The service reads no request of a stream without
/// capacity for the response.
fn request(world: &World, stream: usize, message: &[u8]) -> Option<Operation> {
    let Ok(WatchRequest { request_union: Some(union) }) = WatchRequest::decode(message) else { return None };
    if !world.accepts(stream) {
        return None;
    }
    Some(match union {
        RequestUnion::CreateRequest(request) => Operation::Create(stream, CreateRequest::from(request)),
        RequestUnion::CancelRequest(request) => Operation::Cancel(stream, request.watch_id),
        RequestUnion::ProgressRequest(_) => Operation::Progress(stream),
    })
}
