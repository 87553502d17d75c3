//! The floor under every figure: a server that answers Put and Range without doing anything.
//!
//! `cargo run --release -p kv-server --example echo -- tonic 127.0.0.1:2379` serves through tonic alone,
//! `front` in place of `tonic` through this project's own connection task. Drive either with `loadgen put`.

use api::etcdserverpb::kv_server::{Kv, KvServer};
use api::etcdserverpb::maintenance_server::{Maintenance, MaintenanceServer};
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, CompactionRequest, CompactionResponse, DefragmentRequest,
    DefragmentResponse, DeleteRangeRequest, DeleteRangeResponse, DowngradeRequest, DowngradeResponse,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse,
    PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use api::grpc;
use bytes::{Bytes, BytesMut};
use grpc_server::http2::{
    self, Answer, BegunCall, CallHandler, ConnectionLimits, Replies, Requests, Room, SendNow, Services,
};
use grpc_server::socket::Socket;
use http::HeaderMap;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use transport::tls::Stream;
use transport::wire::Wire;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone)]
struct Echo;

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 })
}

#[tonic::async_trait]
impl Kv for Echo {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        Ok(Response::new(RangeResponse { header: header(), ..RangeResponse::default() }))
    }

    async fn put(&self, _: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        Ok(Response::new(PutResponse { header: header(), prev_kv: None }))
    }

    async fn range_stream(
        &self,
        _: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }
}

/// Load generators ask who leads before they begin.
#[tonic::async_trait]
impl Maintenance for Echo {
    type SnapshotStream = tokio_stream::Empty<Result<SnapshotResponse, Status>>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(status()))
    }

    async fn alarm(&self, _: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn move_leader(
        &self,
        _: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn defragment(
        &self,
        _: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn downgrade(&self, _: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }
}

#[derive(Clone, Copy)]
enum EchoMethod {
    Put,
    Range,
    Status,
}

impl CallHandler for Echo {
    type Call = EchoMethod;
    type Long = std::convert::Infallible;

    fn of(&self, _connection: &auth::Connection, _holder: &Arc<admission::Holder>) -> Echo {
        Echo
    }

    fn begin(
        &self,
        path: &str,
        _headers: &HeaderMap,
        _timeout: Option<&[u8]>,
    ) -> Result<BegunCall<EchoMethod>, Status> {
        match path {
            "/etcdserverpb.KV/Put" => Ok(BegunCall::Unary(EchoMethod::Put)),
            "/etcdserverpb.KV/Range" => Ok(BegunCall::Unary(EchoMethod::Range)),
            "/etcdserverpb.Maintenance/Status" => Ok(BegunCall::Unary(EchoMethod::Status)),
            _ => Err(Status::unimplemented("echo")),
        }
    }

    fn deadline(_call: &EchoMethod) -> Option<tokio::time::Instant> {
        None
    }

    fn user(_call: &EchoMethod) -> Option<u64> {
        None
    }

    fn answer_now(&self, _call: &EchoMethod, _message: &Bytes, _send: &mut SendNow<'_>) -> bool {
        false
    }

    async fn unary(
        &self,
        call: EchoMethod,
        message: Bytes,
        _: Room<'_>,
    ) -> Result<Answer<Self::Long>, Status> {
        Ok(Answer::Whole(match call {
            EchoMethod::Put => {
                PutRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
                prefixed(&PutResponse { header: header(), prev_kv: None })
            }
            EchoMethod::Range => {
                RangeRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
                prefixed(&RangeResponse { header: header(), ..RangeResponse::default() })
            }
            EchoMethod::Status => prefixed(&status()),
        }))
    }

    async fn stream(&self, _call: EchoMethod, _requests: Requests, _replies: Replies) -> Status {
        Status::unimplemented("echo")
    }
}

fn status() -> StatusResponse {
    StatusResponse { header: header(), leader: 2, ..StatusResponse::default() }
}

fn prefixed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(grpc::PREFIX_BYTES + length);
    buffer.extend_from_slice(&grpc::prefix(length).expect("an echo is small"));
    message.encode(&mut buffer).expect("the buffer has room");
    buffer.freeze()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let listener = TcpListener::bind(arguments.next().unwrap_or("127.0.0.1:2379".into())).await?;
    let services = Routes::new(KvServer::new(Echo)).add_service(MaintenanceServer::new(Echo));
    if mode == "tonic" {
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        return Ok(tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(2 << 20)
            .initial_connection_window_size(16 << 20)
            .add_routes(services)
            .serve_with_incoming(incoming)
            .await?);
    }
    let limits = ConnectionLimits {
        message_bytes_max: 2 << 20,
        streams_max: u32::MAX,
        keepalive_interval: Duration::from_secs(7200),
        keepalive_timeout: Duration::from_secs(20),
        ping_spacing_min: Duration::ZERO,
    };
    let totals = Arc::default();
    let (_keep, stop) = watch::channel(false);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let http = tower::service_fn(async |_| Ok(http::Response::new(tonic::body::Body::empty())));
        tokio::spawn(http2::serve(
            Socket::new(Stream::Plain(Wire::Tcp(socket))),
            Services { calls: Echo, http },
            limits,
            Arc::clone(&totals),
            admission::Holder::new(),
            stop.clone(),
        ));
    }
}
