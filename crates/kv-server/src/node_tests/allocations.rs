//! Allocations of hot calls in steady state.
//!
//! Only the connection's task is measured. The requests are encoded in advance.

use api::etcdserverpb::{PutRequest, RangeRequest};
use prost::Message;

use super::*;

/// Requests per read.
const CALLS: usize = 10;
const ROUNDS: usize = 300;

impl PolledConnection {
    /// Sends `CALLS` requests in one read, polls until all have responses, and returns the number of
    /// allocations.
    fn round(&mut self, head: &HeaderBlock, body: &[u8]) -> u64 {
        for _ in 0..CALLS {
            let stream = self.stream;
            self.send(&frame(HEADERS, END_HEADERS, stream, head.bytes()));
            self.send(&frame(DATA, END_STREAM, stream, body));
            self.stream += 2;
        }
        let (mut allocations, began) = (0, std::time::Instant::now());
        while self.answers() < CALLS {
            assert!(began.elapsed() < PATIENCE, "{} answers", self.answers());
            allocations += allocation_counter::measure(|| self.poll()).count_total;
            std::thread::yield_now();
        }
        self.socket.0.lock().received.clear();
        allocations
    }

    /// Number of streams with an end-of-stream frame in the received bytes.
    fn answers(&self) -> usize {
        let is_end = |frame: &&(u8, u8, u32, Vec<u8>)| frame.0 == HEADERS && frame.1 & END_STREAM != 0;
        self.received().iter().filter(is_end).count()
    }

    /// Mean allocations per call after a warm-up.
    fn allocations(&mut self, method: &str, message: &impl Message) -> f64 {
        let (head, body) = (head(method, &[]), prefixed(&message.encode_to_vec()));
        let _warm: u64 = (0..ROUNDS).map(|_| self.round(&head, &body)).sum();
        let allocations: u64 = (0..ROUNDS).map(|_| self.round(&head, &body)).sum();
        allocations as f64 / (ROUNDS * CALLS) as f64
    }
}

#[test]
fn a_range_from_memory_allocates_nothing_and_other_hot_calls_little() {
    let directory = tempfile::tempdir().unwrap();
    // Logging of a slow call would allocate.
    let alone = start(directory.path(), &["--warning-unary-request-duration=1h"]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    let put =
        PutRequest { key: b"foo".as_slice().into(), value: vec![7; 256].into(), ..PutRequest::default() };
    let range = |serializable| RangeRequest {
        key: b"foo".as_slice().into(),
        serializable,
        ..RangeRequest::default()
    };
    let put = connection.allocations("/etcdserverpb.KV/Put", &put);
    let linearizable = connection.allocations("/etcdserverpb.KV/Range", &range(false));
    let serializable = connection.allocations("/etcdserverpb.KV/Range", &range(true));
    assert_eq!(serializable, 0.0);
    assert!(linearizable <= 6.1, "{linearizable}");
    assert!(put <= 7.1, "{put}");
    drop((connection, inside));
    alone.stop();
}
