//! Contents of a store before it is attacked.

use std::time::Duration;

use api::etcdserverpb::PutRequest;
use api::etcdserverpb::kv_client::KvClient;
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::http2::requests;
use crate::failure::{Attempt, Result};

/// Concurrent puts: enough to share syncs, few enough for any limit on concurrent calls.
const CALLERS: u32 = 32;
const RETRIES_MAX: u32 = 20;
const RETRY_DELAY: Duration = Duration::from_millis(50);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Keys `attack/0000000` and following, or with another prefix, and values that do not compress.
#[derive(Clone, Copy, Debug)]
pub struct Preload {
    pub keys: u32,
    pub value_bytes: usize,
}

/// Larger than the caches of a server, which would otherwise grow with the writes of healthy
/// clients during the attack.
const CACHES: Preload = Preload { keys: 3_000, value_bytes: 48 << 10 };

pub fn key(number: u32) -> Bytes {
    named_key("attack", number)
}

fn named_key(prefix: &str, number: u32) -> Bytes {
    Bytes::from(format!("{prefix}/{number:07}"))
}

pub async fn fill_caches(port: u16) -> Result<()> {
    fill_named("healthy/cached", port, &CACHES).await
}

pub async fn fill(port: u16, preload: &Preload) -> Result<()> {
    fill_named("attack", port, preload).await
}

async fn fill_named(prefix: &'static str, port: u16, preload: &Preload) -> Result<()> {
    if preload.keys == 0 {
        return Ok(());
    }
    let channel = requests::connect(port, CALL_TIMEOUT).await.or_say("dial")?;
    let mut callers = JoinSet::new();
    let Preload { keys, value_bytes } = *preload;
    for caller in 0..CALLERS {
        let mut kv = KvClient::new(channel.clone());
        callers.spawn(async move {
            let mut chance = SmallRng::seed_from_u64(u64::from(caller));
            let mut value = vec![0; value_bytes];
            for number in (caller..keys).step_by(CALLERS as usize) {
                chance.fill(&mut value[..]);
                let value = Bytes::copy_from_slice(&value);
                let put = PutRequest { key: named_key(prefix, number), value, ..PutRequest::default() };
                // The channel reconnects after the server closes the connection.
                let mut answer = kv.put(put.clone()).await;
                for _ in 0..RETRIES_MAX {
                    if answer.is_ok() {
                        break;
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                    answer = kv.put(put.clone()).await;
                }
                answer?;
            }
            Ok::<(), tonic::Status>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())).or_say("preload")?;
    }
    Ok(())
}
