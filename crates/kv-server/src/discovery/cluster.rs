//! Discovery of a new cluster's members through another cluster, like etcd's v3 discovery.
//!
//! ```text
//!   /_etcd/registry/TOKEN/_config/size    size of the new cluster, stored by an operator
//!   /_etcd/registry/TOKEN/members/ID      NAME=URL,…, stored by each member
//! ```
//!
//! * The first SIZE registrations, by create revision, form the cluster. Further members fail with "cluster
//!   is full".
//! * Failed requests are retried with exponential backoff and without a limit. Each failure is logged.
//! * Malformed registrations are ignored, and logged once until they change.

use std::collections::HashMap;
use std::time::Duration;

use api::etcdserverpb::{PutRequest, RangeRequest};
use api::mvccpb::KeyValue;
use client::Client;
use tonic::Status;
use tonic::transport::Endpoint;

use config::DiscoveryCluster;
use process::log::causes;
use transport::tls::Dialer;

const REGISTRY: &str = "/_etcd/registry";
/// Polling interval. Members of a new cluster are started within seconds or minutes.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Initial and maximum backoff after a failed request.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Unusable registry, with etcd's error texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("discovery: size key not found")]
    SizeNotFound,
    #[error("discovery: size key is bad")]
    BadSize,
    #[error("discovery: cluster is full")]
    Full,
    /// Malformed endpoint URL.
    #[error("discovery: invalid peer URL: {0}")]
    Endpoint(String),
}

/// Registers the member `id` as `config`, waits until all members have registered, and returns the initial
/// cluster.
pub async fn join(
    cluster: &DiscoveryCluster,
    dialer: &Dialer,
    id: u64,
    config: &str,
) -> Result<String, JoinError> {
    let registry = Registry::new(cluster, dialer)?;
    let mut ignored = IgnoredMembers::default();
    let own = format!("{REGISTRY}/{}/members/{id:x}", cluster.token);
    // Check before registering, so that a surplus member does not write to the registry.
    let size = registry.size().await?;
    let known = ignored.leave_out(registry.registrations().await);
    check_place(&known, &own, size)?;
    registry.put(&own, config).await;
    tracing::info!(key = own, size, "register the member in the discovery cluster");
    let mut found = 0;
    loop {
        let known = ignored.leave_out(registry.registrations().await);
        check_place(&known, &own, size)?;
        if known.len() >= size {
            let configs = known.iter().take(size).map(|(_, config)| config.as_str());
            return Ok(configs.collect::<Vec<_>>().join(","));
        }
        if known.len() != found {
            found = known.len();
            tracing::info!(
                found,
                needed = size - found,
                "found peers from discovery server; waiting for more peers"
            );
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns an error unless the member is, or would be, one of the first `size`.
fn check_place(known: &[(String, String)], own: &str, size: usize) -> Result<(), JoinError> {
    let place = known.iter().position(|(key, _)| key == own).unwrap_or(known.len());
    if place < size { Ok(()) } else { Err(JoinError::Full) }
}

fn parse_size(stored: &[KeyValue]) -> Result<usize, JoinError> {
    let stored = stored.first().ok_or(JoinError::SizeNotFound)?;
    let text = std::str::from_utf8(&stored.value).map_err(|_| JoinError::BadSize)?;
    text.parse().ok().filter(|size| *size > 0).ok_or(JoinError::BadSize)
}

/// Returns keys and values in order of registration.
fn registered(mut stored: Vec<KeyValue>) -> Vec<(String, String)> {
    stored.sort_by_key(|pair| pair.create_revision);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    stored.into_iter().map(|pair| (text(&pair.key), text(&pair.value))).collect()
}

fn is_member(config: &str) -> bool {
    config.split(',').all(|part| part.split_once('=').is_some_and(|(_, url)| !url.is_empty()))
}

/// Malformed registrations in the previous response, for which a warning was logged.
#[derive(Default)]
struct IgnoredMembers(HashMap<String, String>);

impl IgnoredMembers {
    /// Returns the well-formed registrations. Logs the others unless the previous response had them
    /// unchanged.
    fn leave_out(&mut self, registrations: Vec<(String, String)>) -> Vec<(String, String)> {
        let (members, others) = registrations.into_iter().partition(|(_, config)| is_member(config));
        let others: Vec<(String, String)> = others;
        for (key, config) in others.iter().filter(|(key, config)| self.0.get(key) != Some(config)) {
            tracing::warn!(key, config, "ignored invalid member registration");
        }
        self.0 = others.into_iter().collect();
        members
    }
}

struct Registry<'a> {
    cluster: &'a DiscoveryCluster,
    endpoints: Vec<Endpoint>,
    dialer: &'a Dialer,
}

impl<'a> Registry<'a> {
    fn new(cluster: &'a DiscoveryCluster, dialer: &'a Dialer) -> Result<Registry<'a>, JoinError> {
        let endpoint = |text: &String| {
            let scheme = if cluster.is_secure { "https" } else { "http" };
            let url = if text.contains("://") { text.clone() } else { format!("{scheme}://{text}") };
            let endpoint = Endpoint::from_shared(url).map_err(|_| JoinError::Endpoint(text.clone()))?;
            Ok(endpoint
                .connect_timeout(cluster.dial_timeout)
                .timeout(cluster.request_timeout)
                .http2_keep_alive_interval(cluster.keepalive_time)
                .keep_alive_timeout(cluster.keepalive_timeout))
        };
        let endpoints = cluster.endpoints.iter().map(endpoint).collect::<Result<_, JoinError>>()?;
        Ok(Registry { cluster, endpoints, dialer })
    }

    async fn size(&self) -> Result<usize, JoinError> {
        let key = format!("{REGISTRY}/{}/_config/size", self.cluster.token);
        parse_size(&self.range(RangeRequest { key: key.into(), ..RangeRequest::default() }).await)
    }

    async fn registrations(&self) -> Vec<(String, String)> {
        let prefix = format!("{REGISTRY}/{}/members/", self.cluster.token);
        // End of the prefix: `0` is the byte after `/`.
        let end = format!("{REGISTRY}/{}/members0", self.cluster.token);
        let request = RangeRequest { key: prefix.into(), range_end: end.into(), ..RangeRequest::default() };
        registered(self.range(request).await)
    }

    async fn range(&self, request: RangeRequest) -> Vec<KeyValue> {
        let ask = async |client: Client| Ok(client.kv().range(request.clone()).await?.into_inner().kvs);
        self.until_answered(ask).await
    }

    async fn put(&self, key: &str, value: &str) {
        let request = PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            ..PutRequest::default()
        };
        self.until_answered(async |client: Client| client.kv().put(request.clone()).await.map(drop)).await;
    }

    /// Tries the endpoints in rotation until one succeeds.
    async fn until_answered<T>(&self, ask: impl AsyncFn(Client) -> Result<T, Status>) -> T {
        let mut pause = PAUSE;
        loop {
            for endpoint in &self.endpoints {
                let asked = async {
                    let client = Client::new(self.dialer.channel(endpoint).await?);
                    let asked = async { ask(self.logged_in(client).await?).await };
                    asked.await.map_err(|status| causes(&status))
                };
                match asked.await {
                    Ok(answer) => return answer,
                    Err(error) => tracing::warn!(
                        endpoint = %endpoint.uri(),
                        error,
                        retry_in = ?pause,
                        "discovery cluster did not respond; retrying"
                    ),
                }
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    async fn logged_in(&self, client: Client) -> Result<Client, Status> {
        let Some((name, password)) = &self.cluster.user else { return Ok(client) };
        let token = client.authenticate(name, password).await?;
        Ok(client.with_token(Some(token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str, create_revision: i64) -> KeyValue {
        let (key, value) = (key.to_owned().into(), value.to_owned().into());
        KeyValue { key, value, create_revision, ..KeyValue::default() }
    }

    #[test]
    fn the_size_is_a_positive_number() {
        assert_eq!(parse_size(&[]), Err(JoinError::SizeNotFound));
        for (stored, wanted) in [
            ("3", Ok(3)),
            ("0", Err(JoinError::BadSize)),
            ("x", Err(JoinError::BadSize)),
            ("-1", Err(JoinError::BadSize)),
        ] {
            assert_eq!(parse_size(&[pair("size", stored, 1)]), wanted, "{stored}");
        }
    }

    #[test]
    fn the_first_to_register_are_the_cluster() {
        let stored = vec![
            pair("c", "c=http://h:3", 9),
            pair("a", "a=http://h:1,a=http://h:4", 7),
            pair("x", "no member", 6),
            pair("b", "b=http://h:2", 8),
        ];
        let known = IgnoredMembers::default().leave_out(registered(stored));
        assert_eq!(known.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        for (own, size, wanted) in [
            ("a", 1, Ok(())),
            ("b", 1, Err(JoinError::Full)),
            ("d", 3, Err(JoinError::Full)),
            ("d", 4, Ok(())),
        ] {
            assert_eq!(check_place(&known, own, size), wanted, "{own} {size}");
        }
    }
}
