//! The calls of an operator: to any member that answers, repeated until they are done.
//!
//! * A call that was not answered may have been made. So "it is so already" is success.

use std::time::{Duration, Instant};

use api::etcdserverpb::cluster_client::ClusterClient;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::{
    Member as Entry, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
    MemberUpdateRequest, MoveLeaderRequest, StatusRequest, StatusResponse,
};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::PATIENCE;

/// A member that is paused does not answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

async fn channel(port: u16) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).or_say("a member's address")?;
    let dialled = endpoint.connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT).connect().await;
    dialled.or_say(&format!("dial port {port}"))
}

/// Makes `call` at one port after another until it succeeds, or is refused with `done`.
async fn until_done<F: Future<Output = std::result::Result<(), Status>>>(
    what: &str,
    ports: &[u16],
    done: &str,
    call: impl Fn(Channel) -> F,
) -> Result<()> {
    let (deadline, mut last) = (Instant::now() + PATIENCE, String::new());
    for port in ports.iter().cycle() {
        match channel(*port).await {
            Ok(channel) => match call(channel).await {
                Ok(()) => return Ok(()),
                Err(status) if status.message() == done => return Ok(()),
                Err(status) => last = status.message().to_owned(),
            },
            Err(failure) => last = failure.to_string(),
        }
        if Instant::now() > deadline {
            break;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Err(ExperimentError::new(format!("{what}: not done within {} s: {last}", PATIENCE.as_secs())))
}

pub async fn add(ports: &[u16], url: &str, is_learner: bool) -> Result<()> {
    let request = MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner };
    until_done("add a member", ports, "etcdserver: Peer URLs already exists", |channel| {
        let request = request.clone();
        async move { ClusterClient::new(channel).member_add(request).await.map(drop) }
    })
    .await
}

pub async fn promote(ports: &[u16], id: u64) -> Result<()> {
    until_done(
        "promote a learner",
        ports,
        "etcdserver: can only promote a learner member",
        |channel| async move {
            ClusterClient::new(channel).member_promote(MemberPromoteRequest { id }).await.map(drop)
        },
    )
    .await
}

pub async fn remove(ports: &[u16], id: u64) -> Result<()> {
    until_done("remove a member", ports, "etcdserver: member not found", |channel| async move {
        ClusterClient::new(channel).member_remove(MemberRemoveRequest { id }).await.map(drop)
    })
    .await
}

pub async fn update(ports: &[u16], id: u64, url: &str) -> Result<()> {
    let request = MemberUpdateRequest { id, peer_ur_ls: vec![url.to_owned()] };
    until_done("update a member", ports, "etcdserver: Peer URLs already exists", |channel| {
        let request = request.clone();
        async move { ClusterClient::new(channel).member_update(request).await.map(drop) }
    })
    .await
}

/// The list as the member at `port` has applied it.
pub async fn list(port: u16) -> Result<Vec<Entry>> {
    let request = MemberListRequest { linearizable: false };
    let answer = ClusterClient::new(channel(port).await?).member_list(request).await;
    Ok(answer.or_say(&format!("list the members at port {port}"))?.into_inner().members)
}

pub async fn status(port: u16) -> Result<StatusResponse> {
    let answer = MaintenanceClient::new(channel(port).await?).status(StatusRequest {}).await;
    Ok(answer.or_say(&format!("ask the status at port {port}"))?.into_inner())
}

/// Makes the voter `id` the leader. `ports` are those of all members that run.
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
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Whether the member at `port` leads and is the wanted one. If it leads and is not, it is asked to hand
/// over.
async fn lead_at(port: u16, id: u64) -> Result<bool> {
    let status = status(port).await?;
    let own = status.header.as_ref().map_or(0, |header| header.member_id);
    if status.leader != own {
        return Ok(false);
    }
    if own == id {
        return Ok(true);
    }
    let request = MoveLeaderRequest { target_id: id };
    MaintenanceClient::new(channel(port).await?).move_leader(request).await.or_say("move the leader")?;
    Ok(false)
}
