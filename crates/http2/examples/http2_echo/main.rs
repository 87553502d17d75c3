//! The cost of HTTP/2 itself: servers that respond to each call with the same 20 bytes of gRPC, on one
//! thread.
//!
//! `cargo run --release -p http2 --example http2_echo -- MODE 127.0.0.1:2379`, where MODE is
//! - `http2`: this crate and its driver. It passes h2spec.
//! - `h2`: the crate `h2`, all calls of a connection in one task.
//! - `floor`: frames parsed by hand, without checks. Not a usable server, but a lower bound of the cost.
//!
//! The response is a RangeResponse, so `benchmark range foo --consistency=s` of etcd can drive all of them.

mod floor; // by hand
#[path = "../../tests/common/harness.rs"]
mod harness;
mod library; // with h2
mod machine; // with this crate

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The gRPC frame of the response: flag, length, 20 bytes of a RangeResponse with a header and a count.
const MESSAGE: [u8; 25] = [
    0, 0, 0, 0, 20, 0x0a, 16, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x10, 2, 0x18, 3,
    0x20, 4, 0x20, 1,
];

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let address = arguments.next().unwrap_or("127.0.0.1:2379".into());
    if mode == "floor" {
        return floor::serve(&address);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            match mode.as_str() {
                "http2" => drop(tokio::spawn(machine::serve(socket))),
                "h2" => drop(tokio::spawn(library::serve(socket))),
                _ => return Err(std::io::Error::other("MODE is http2, h2 or floor")),
            }
        }
    })
}
