//! Tracks which endpoint leads while a run is in progress.
//!
//! A thread polls the status of the leader a few times a second. If that fails, or another member leads, it
//! polls all endpoints. The cost is a few small requests per second, to the leader only.

use crate::client::admin::{self, AdminClient};
use crate::client::endpoint::Endpoint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

/// A fraction of an election timeout of a second.
const LOOK: Duration = Duration::from_millis(250);
/// A slower member does not lead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The search, which stops on drop.
pub struct LeaderWatch {
    place: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl LeaderWatch {
    /// Finds the leader, and starts to track it.
    pub fn begin(endpoints: &[Endpoint]) -> Result<Self, String> {
        let (place, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (found, first) = mpsc::channel();
        let watch = Self { place: place.clone(), ended: ended.clone() };
        let endpoints = endpoints.to_vec();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(follow(&endpoints, &place, &ended, &found)),
                // The receiver waits for the first result.
                Err(error) => drop(found.send(Err(error.to_string()))),
            }
        };
        let spawned = std::thread::Builder::new().name("leader".into()).spawn(body);
        spawned.map_err(|error| error.to_string())?;
        first.recv().map_err(|_| "the search for the leader ended".to_owned())??;
        Ok(watch)
    }

    /// Returns the index of the leading endpoint; the last known one if there is no leader.
    pub fn place(&self) -> Arc<AtomicUsize> {
        self.place.clone()
    }
}

impl Drop for LeaderWatch {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

async fn follow(
    endpoints: &[Endpoint],
    place: &AtomicUsize,
    ended: &AtomicBool,
    found: &mpsc::Sender<Result<(), String>>,
) {
    match search(endpoints).await {
        Some(leader) => place.store(leader, Relaxed),
        None => {
            // The caller gives up.
            let _ = found.send(Err(admin::Error::NoLeader.to_string()));
            return;
        }
    }
    let _ = found.send(Ok(()));
    let mut client = None;
    while !ended.load(Relaxed) {
        tokio::time::sleep(LOOK).await;
        if client.is_none() {
            client = connected(&endpoints[place.load(Relaxed)]).await;
        }
        let still_leads = match &client {
            Some(client) => leads(client).await,
            None => false,
        };
        if !still_leads {
            client = None;
            if let Some(leader) = search(endpoints).await {
                place.store(leader, Relaxed);
            }
        }
    }
}

/// Returns the first endpoint that leads.
async fn search(endpoints: &[Endpoint]) -> Option<usize> {
    for (index, endpoint) in endpoints.iter().enumerate() {
        if let Some(client) = connected(endpoint).await
            && leads(&client).await
        {
            return Some(index);
        }
    }
    None
}

async fn connected(endpoint: &Endpoint) -> Option<AdminClient> {
    tokio::time::timeout(ANSWER_TIMEOUT, AdminClient::connect(endpoint)).await.ok()?.ok()
}

async fn leads(client: &AdminClient) -> bool {
    let status = tokio::time::timeout(ANSWER_TIMEOUT, client.status()).await;
    status.is_ok_and(|status| status.is_ok_and(|status| admin::leads(&status)))
}
