//! A small in-process gRPC server for tests.

use api::etcdserverpb::kv_server::{Kv, KvServer};
use api::etcdserverpb::*;
use loadgen::Endpoint;
use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// A store with the latest revision of each key.
#[derive(Default)]
pub struct Store {
    pub revision: AtomicI64,
    pub keys: Mutex<BTreeMap<Vec<u8>, i64>>,
    pub requests: AtomicUsize,
    pub in_flight: AtomicUsize,
    pub in_flight_most: AtomicUsize,
    pub peers: Mutex<HashSet<SocketAddr>>,
    pub behaviour: Behaviour,
}

#[derive(Clone, Copy, Default)]
pub enum Behaviour {
    #[default]
    Answers,
    /// Rejects every nth request.
    RefusesEvery(usize),
    AnswersAfter(Duration),
    /// Ranges return a value of this many bytes.
    ReturnsBytes(usize),
    NeverAnswers,
}

#[derive(Clone)]
pub struct Service(Arc<Store>);

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    async fn answer<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let store = &self.0;
        let number = store.requests.fetch_add(1, SeqCst) + 1;
        let now = store.in_flight.fetch_add(1, SeqCst) + 1;
        store.in_flight_most.fetch_max(now, SeqCst);
        store.peers.lock().unwrap().extend(request.remote_addr());
        let result = match store.behaviour {
            Behaviour::RefusesEvery(nth) if number.is_multiple_of(nth) => {
                Err(Status::unavailable("etcdserver: request timed out"))
            }
            Behaviour::AnswersAfter(delay) => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            Behaviour::NeverAnswers => std::future::pending().await,
            Behaviour::Answers | Behaviour::RefusesEvery(_) | Behaviour::ReturnsBytes(_) => {
                // Yields, so that callers overlap.
                tokio::task::yield_now().await;
                Ok(())
            }
        };
        store.in_flight.fetch_sub(1, SeqCst);
        result
    }

    fn write(&self, puts: Vec<PutRequest>) -> Option<ResponseHeader> {
        let revision = self.0.revision.fetch_add(1, SeqCst) + 1;
        let mut keys = self.0.keys.lock().unwrap();
        for put in puts {
            let newest = keys.entry(put.key.to_vec()).or_default();
            *newest = revision.max(*newest);
        }
        Some(ResponseHeader { cluster_id: 7, member_id: 9, revision, raft_term: 2 })
    }
}

#[tonic::async_trait]
impl Kv for Service {
    type RangeStreamStream = Stream<RangeStreamResponse>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.answer(&request).await?;
        let bytes = if let Behaviour::ReturnsBytes(bytes) = self.0.behaviour { bytes } else { 0 };
        let kv = api::mvccpb::KeyValue { value: vec![1; bytes].into(), ..Default::default() };
        let header = Some(ResponseHeader { revision: 5, ..Default::default() });
        Ok(Response::new(RangeResponse { header, kvs: vec![kv], more: false, count: 1 }))
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.answer(&request).await?;
        let part =
            RangeStreamResponse { range_response: Some(RangeResponse { count: 1, ..Default::default() }) };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(part.clone()), Ok(part)]))))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.answer(&request).await?;
        let header = self.write(vec![request.into_inner()]);
        Ok(Response::new(PutResponse { header, prev_kv: None }))
    }

    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.answer(&request).await?;
        let puts = request.into_inner().success.into_iter().filter_map(|op| match op.request {
            Some(request_op::Request::RequestPut(put)) => Some(put),
            _ => None,
        });
        let header = self.write(puts.collect());
        Ok(Response::new(TxnResponse { header, succeeded: true, ..Default::default() }))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::unimplemented("not part of these tests"))
    }
}

/// A server on a separate thread, stopped on drop.
pub struct Server {
    pub store: Arc<Store>,
    pub endpoint: Endpoint,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Self {
        Self::start_limited(behaviour, None)
    }

    pub fn start_limited(behaviour: Behaviour, streams_max: Option<u32>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let store = Arc::new(Store { behaviour, ..Default::default() });
        let service = Service(store.clone());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
                let server = tonic::transport::Server::builder().max_concurrent_streams(streams_max);
                let serving = { server }.add_service(KvServer::new(service)).serve_with_incoming(incoming);
                tokio::select! {
                    result = serving => result.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { store, endpoint, stop: Some(stop), thread: Some(thread) }
    }

    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
