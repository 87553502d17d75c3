//! Plaintext connections to the members of a cluster.

use client::Client;
use std::time::Duration;
use tonic::transport::Endpoint;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter timeout for an unnamed member, because its address may not be reachable from here.
const OTHER_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to `host:port`. Calls have no timeout, because watch streams stay open.
pub async fn connect(endpoint: &str) -> Result<Client, String> {
    let fail = |error: tonic::transport::Error| format!("cannot connect to {endpoint}: {error}");
    let channel = Endpoint::from_shared(format!("http://{endpoint}")).map_err(fail)?;
    let channel = channel.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    channel.connect().await.map(Client::new).map_err(fail)
}

/// Returns the named endpoints, the endpoints of other reachable members, and the number of unreachable
/// members.
pub async fn members(named: &[String]) -> Result<(Vec<String>, usize), String> {
    let mut endpoints = named.to_vec();
    let mut known = Vec::new();
    for endpoint in named {
        let status = connect(endpoint).await?.status().await;
        let status = status.map_err(|status| format!("{endpoint}: Status: {}", status.message()))?;
        known.push(client::member_id(&status));
    }
    let first = named.first().ok_or("no endpoint given")?;
    let list = connect(first).await?.members(false).await.unwrap_or_default();
    let mut unreachable = 0;
    for member in list.iter().filter(|member| !known.contains(&member.id)) {
        let mut found = None;
        for url in &member.client_ur_ls {
            let endpoint = url.trim_start_matches("http://");
            let status = async { connect(endpoint).await.ok()?.status().await.ok() };
            let status = tokio::time::timeout(OTHER_TIMEOUT, status).await.ok().flatten();
            // An address such as 0.0.0.0 may lead to another member.
            if status.is_some_and(|status| client::member_id(&status) == member.id) {
                found = Some(endpoint.to_owned());
                break;
            }
        }
        match found {
            Some(endpoint) => endpoints.push(endpoint),
            None => unreachable += 1,
        }
    }
    Ok((endpoints, unreachable))
}
