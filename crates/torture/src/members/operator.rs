//! The calls of an operator, retried on any responsive member until they succeed.
//!
//! * A call without a response may have been applied, so "already done" counts as success.

use std::time::{Duration, Instant};

use api::etcdserverpb::{
    Member as Entry, MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
    MoveLeaderRequest, StatusResponse,
};
use client::Client;
use tonic::Status;

use crate::clients::client::connect;
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::PATIENCE;

/// Bounds a call to a paused member, which does not respond.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Makes `call` at one port after another until it succeeds or fails with `done`.
async fn until_done(
    what: &str,
    ports: &[u16],
    done: &str,
    call: impl AsyncFn(Client) -> std::result::Result<(), Status>,
) -> Result<()> {
    let (deadline, mut last) = (Instant::now() + PATIENCE, String::new());
    for port in ports.iter().cycle() {
        match connect(*port, CALL_TIMEOUT).await {
            Ok(client) => match call(client).await {
                Ok(()) => return Ok(()),
                Err(status) if status.message() == done => return Ok(()),
                Err(status) => last = status.message().to_owned(),
            },
            Err(failure) => last = failure.to_string(),
        }
        if Instant::now() > deadline {
            break;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    Err(ExperimentError::new(format!("{what}: not done within {} s: {last}", PATIENCE.as_secs())))
}

pub async fn add(ports: &[u16], url: &str, is_learner: bool) -> Result<()> {
    let request = MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner };
    let call = async |client: Client| client.cluster().member_add(request.clone()).await.map(drop);
    until_done("add a member", ports, "etcdserver: Peer URLs already exists", call).await
}

pub async fn promote(ports: &[u16], id: u64) -> Result<()> {
    let call =
        async |client: Client| client.cluster().member_promote(MemberPromoteRequest { id }).await.map(drop);
    until_done("promote a learner", ports, "etcdserver: can only promote a learner member", call).await
}

pub async fn remove(ports: &[u16], id: u64) -> Result<()> {
    let call =
        async |client: Client| client.cluster().member_remove(MemberRemoveRequest { id }).await.map(drop);
    until_done("remove a member", ports, "etcdserver: member not found", call).await
}

pub async fn update(ports: &[u16], id: u64, url: &str) -> Result<()> {
    let request = MemberUpdateRequest { id, peer_ur_ls: vec![url.to_owned()] };
    let call = async |client: Client| client.cluster().member_update(request.clone()).await.map(drop);
    until_done("update a member", ports, "etcdserver: Peer URLs already exists", call).await
}

/// Lists the membership that the member at `port` has applied.
pub async fn list(port: u16) -> Result<Vec<Entry>> {
    let listed = connect(port, CALL_TIMEOUT).await?.members(false).await;
    listed.or_say(&format!("list the members at port {port}"))
}

pub async fn status(port: u16) -> Result<StatusResponse> {
    let status = connect(port, CALL_TIMEOUT).await?.status().await;
    status.or_say(&format!("ask the status at port {port}"))
}

/// Transfers leadership to the voter `id`. `ports` are those of all running members.
pub async fn lead(ports: &[u16], id: u64) -> Result<()> {
    let (deadline, mut last) = (Instant::now() + PATIENCE, String::new());
    loop {
        for port in ports {
            match lead_at(*port, id).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(failure) => last = failure.to_string(),
            }
        }
        if Instant::now() > deadline {
            let waited = PATIENCE.as_secs();
            return Err(ExperimentError::new(format!(
                "move the leader to {id:x}: not done within {waited} s: {last}"
            )));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Reports whether the member at `port` leads and has this id. A leader with another id is
/// requested to transfer leadership.
async fn lead_at(port: u16, id: u64) -> Result<bool> {
    let status = status(port).await?;
    if !client::leads(&status) || status.leader == id {
        return Ok(client::leads(&status));
    }
    let request = MoveLeaderRequest { target_id: id };
    connect(port, CALL_TIMEOUT).await?.maintenance().move_leader(request).await.or_say("move the leader")?;
    Ok(false)
}
