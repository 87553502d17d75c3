//! Memory of idle connections: bytes allocated by all layers from the listener on.
//!
//! Measured on the thread that accepts and serves them. The clients are plain sockets, which do not allocate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use api::etcdserverpb::RangeRequest;
use prost::Message;

use super::*;
use config::Urls;
use grpc_server::client_port::{self, Traffic};
use grpc_server::listen;

const CONNECTIONS: usize = 100;

/// Limit for a connection after the exchange of prefaces and settings.
const NEW_BYTES_MAX: i64 = 4000;
/// Additional limit after calls, for the HPACK table and the IDs of recently closed streams.
const FIELDS_BYTES_MAX: i64 = 3 << 10;
/// Additional limit if deadlines have filled the HPACK table. It has 4096 bytes by the RFC's count; short
/// strings need more memory.
const FULL_TABLE_BYTES_MAX: i64 = 12 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    None,
    /// Like gRPC for Go: the first call adds its fields to the table, the others refer to them.
    Repeated,
    /// Each call adds another deadline to the table.
    WithDeadlines,
}

impl Calls {
    fn count(self) -> u32 {
        if self == Calls::None { 0 } else { 100 }
    }

    fn bytes(self) -> Vec<u8> {
        (0..self.count()).flat_map(|number| self.call(number)).collect()
    }

    fn call(self, number: u32) -> Vec<u8> {
        let string = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let literal = |kind: u8, name: &str, value: &str| [vec![kind], string(name), string(value)].concat();
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/etcdserverpb.KV/Range"),
            (":authority", "127.0.0.1:2379"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.79.3"),
            ("te", "trailers"),
        ];
        let block = match self {
            // Index 62 is the latest entry of the dynamic table.
            Calls::Repeated if number > 0 => (62..69).rev().map(|index| 0x80 | index).collect(),
            Calls::Repeated => fields.map(|(name, value)| literal(0x40, name, value)).concat(),
            Calls::None | Calls::WithDeadlines => {
                let deadline = literal(0x40, "grpc-timeout", &format!("{}m", 90_000 + number));
                [fields.map(|(name, value)| literal(0, name, value)).concat(), deadline].concat()
            }
        };
        let range =
            RangeRequest { key: b"foo".as_slice().into(), serializable: true, ..RangeRequest::default() };
        let stream = 2 * number + 1;
        let head = frame(HEADERS, END_HEADERS, stream, &block);
        [head, frame(DATA, END_STREAM, stream, &prefixed(&range.encode_to_vec()))].concat()
    }
}

/// Returns the bytes allocated per client that connects, makes its calls and becomes idle.
fn memory_of_connections(alone: &Alone, calls: Calls) -> i64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (stopper, stop) = shutdown::stop();
    let permits = Permits::new(1000);
    let address = runtime.block_on(async {
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let ports = vec![((listener, None), Traffic::GrpcAndHttp)];
        client_port::serve(ports, &alone.services(), &permits, &stop);
        address
    });
    let mut clients = Vec::with_capacity(CONNECTIONS + 1);
    let bytes = [hello(), calls.bytes()].concat();
    // The first client triggers allocations that are shared by all.
    clients.push(connect(address, &bytes));
    runtime.block_on(rest());
    let measured = allocation_counter::measure(|| {
        clients.extend((0..CONNECTIONS).map(|_| connect(address, &bytes)));
        runtime.block_on(rest());
    });
    let mut answers = [0; 1 << 16];
    for client in &mut clients {
        let read = client.read(&mut answers).unwrap();
        assert!(read > 50 * calls.count() as usize, "{read} bytes of answers");
        client.set_nonblocking(true).unwrap();
        let end = client.read(&mut answers);
        assert!(end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it was closed");
    }
    drop(clients);
    stopper.stop();
    runtime.block_on(permits.drained());
    measured.bytes_current / CONNECTIONS as i64
}

fn connect(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(bytes).unwrap();
    client
}

/// Waits until connections are idle. The clock is paused, so time advances only when all tasks are blocked.
async fn rest() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[test]
fn an_idle_connection_holds_little_memory_also_after_calls() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let [new, used, full] = [Calls::None, Calls::Repeated, Calls::WithDeadlines]
        .map(|calls| memory_of_connections(&alone, calls));
    println!("{new} bytes, {used} after calls, {full} after calls with deadlines");
    assert!(new <= NEW_BYTES_MAX, "{new}");
    assert!(used <= new + FIELDS_BYTES_MAX, "{used}, without calls {new}");
    assert!(full <= new + FULL_TABLE_BYTES_MAX, "{full}, without calls {new}");
    alone.stop();
}
