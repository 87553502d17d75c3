//! The CPU cost of the load generator: a thousand callers on a hundred connections against an echo server.
//!
//! `cargo run --release -p loadgen --example cost` starts the echo server as a separate process (of this
//! program), so that its processor time is not counted. An argument of the form host:port measures that
//! server instead.
//!
//! The kernel uses a large part of the budget of 15 µs per request: requests that arrive together share
//! system calls, but not copying.

use api::etcdserverpb::{PutResponse, ResponseHeader};
use bytes::Bytes;
use http::{HeaderMap, Response};
use loadgen::{Endpoint, KeyOrder, Run, Values, Workload, Writes};
use prost::Message;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use tokio::net::{TcpListener, TcpStream};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 7;
const TOTAL: u64 = 200_000;
const BUDGET_MICROS: f64 = 15.0;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve())?;
    }
    let Some(endpoint) = argument else {
        let mut echo = Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        BufReader::new(echo.stdout.take().ok_or("no output of the echo")?).read_line(&mut address)?;
        let measured = measure(address.trim().parse()?);
        echo.kill()?;
        echo.wait()?;
        return measured;
    };
    measure(endpoint.parse()?)
}

#[expect(clippy::print_stdout, reason = "the figures are the program's purpose")]
fn measure(endpoint: Endpoint) -> Result<ExitCode, Box<dyn Error>> {
    let writes = Writes {
        key_bytes: 8,
        value_bytes: 256,
        prefix: bytes::Bytes::new(),
        key_space: TOTAL,
        order: KeyOrder::Sequential,
        values: Values::Same,
        seed: 1,
    };
    let plan = Run { conns: 100, clients: 1000, ..Run::new(endpoint, Workload::Put(writes), TOTAL) };
    let mut costs = Vec::new();
    for round in 0..=ROUNDS {
        let measurement = plan.clone().measure()?;
        let (cost, rate) = (measurement.client_cpu_micros(), measurement.per_second());
        // Round 0 is the warm-up.
        if round > 0 {
            println!(
                "{cost:.1} µs per request at {rate:.0} requests/s, {} failed",
                measurement.tally.failed_len()
            );
            costs.push(cost);
        }
    }
    costs.sort_unstable_by(f64::total_cmp);
    let median = costs[costs.len() / 2];
    println!(
        "median {median:.1} µs, least {:.1}, most {:.1}; budget {BUDGET_MICROS}",
        costs[0],
        costs[ROUNDS - 1]
    );
    Ok(if median <= BUDGET_MICROS { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Responds to every call with the same bytes.
#[expect(clippy::print_stdout, reason = "the other process reads the address")]
async fn serve() -> Result<(), Box<dyn Error>> {
    let header = ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 };
    let message = PutResponse { header: Some(header), prev_kv: None }.encode_to_vec();
    let prefix = api::grpc::prefix(message.len()).ok_or("a long answer")?;
    let answer = Bytes::from([&prefix, &message[..]].concat());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let answer = answer.clone();
        tokio::spawn(async move {
            // A client error only closes its connection.
            let _ = echo(socket, answer).await;
        });
    }
}

async fn echo(socket: TcpStream, answer: Bytes) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(2 << 20).initial_connection_window_size(16 << 20);
    let mut connection = builder.handshake::<_, Bytes>(socket).await?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    while let Some(call) = connection.accept().await {
        let (_, mut respond) = call?;
        let head = Response::builder().header("content-type", "application/grpc").body(());
        let Ok(head) = head else { continue };
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(answer.clone(), false)?;
        stream.send_trailers(trailers.clone())?;
    }
    Ok(())
}
