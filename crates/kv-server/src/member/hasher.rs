//! Hashes of this member's history, for comparison with other members.
//!
//! A hash reads the whole history. It takes a permit of the gate for clients' hash requests, and is aborted
//! when its caller is dropped.

use std::sync::Arc;
use std::time::Duration;

use mvcc::{KvHash, Meter, RecountAnswer, RecountSpan, Store};
use state_machine::Failure;
use tonic::Status;

use admission::{Admission, ClientId, MemoryLimit};

/// Identifies all members together as one client. Client connections are numbered from 1.
const MEMBERS: ClientId = ClientId::alone(u64::MAX);

#[derive(Clone)]
pub struct Hasher {
    pub store: Store,
    pub admission: Arc<Admission>,
}

impl Hasher {
    /// `command_wait_max` and `memory` are limits of the member's admission.
    pub fn new(store: Store, command_wait_max: Duration, memory: Arc<MemoryLimit>) -> Hasher {
        Hasher { store, admission: Arc::new(Admission::new(command_wait_max, memory)) }
    }

    /// Returns the digest of a part of the state, and the CPU time spent on it.
    ///
    /// Fails if admission times out or the store cannot be read.
    pub async fn recount(&self, span: RecountSpan) -> Result<(RecountAnswer, Duration), Status> {
        let store = self.store.clone();
        let recount = move |meter: &dyn Meter| {
            let began = thread_time();
            let recounted = store.recount(&span, meter).map_err(Failure::from)?;
            Ok((recounted, thread_time().saturating_sub(began)))
        };
        self.admission.within(&self.admission.recounts, MEMBERS, recount).await
    }

    /// Returns the hash of the history up to `at`; 0 means the current revision.
    ///
    /// Fails with etcd's errors for a compacted or future revision, and if admission times out or the store
    /// cannot be read.
    pub async fn hash(&self, at: i64) -> Result<KvHash, Status> {
        let store = self.store.clone();
        let hash = move |meter: &dyn Meter| store.hash_kv_metered(at, meter).map_err(Failure::from);
        self.admission.within(&self.admission.hashes, MEMBERS, hash).await
    }
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
