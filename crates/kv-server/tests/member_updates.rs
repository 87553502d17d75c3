//! Member address changes in a running cluster, as etcd documents them: the member list is updated first,
//! then the member is restarted at its new address.

use std::time::Duration;

use crate::common::{Cluster, Member};
use api::etcdserverpb::MemberUpdateRequest;

/// Updates the peer URL of `of` in the member list, through `by`.
async fn update(by: &Member, of: &Member, port: u16) {
    let request =
        MemberUpdateRequest { id: of.id().await, peer_ur_ls: vec![format!("http://127.0.0.1:{port}")] };
    by.client().await.cluster().member_update(request).await.expect("the update is applied");
}

async fn term(member: &Member) -> u64 {
    member.client().await.status().await.unwrap().raft_term
}

/// Puts a key at each running member.
async fn put_at_all(cluster: &Cluster, key: &str) {
    for member in cluster.members.iter().filter(|member| member.process.is_some()) {
        member.put(key, &member.name).await;
    }
}

fn restart(member: &mut Member, port: u16) {
    member.kill();
    member.peer_port = port;
    member.initial_cluster.clear(); // Not needed for a restart.
    member.launch();
    member.wait_ready();
}

#[tokio::test]
async fn updates_of_all_members_and_their_moves_one_by_one_leave_a_cluster_that_writes() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let before = term(&cluster.members[leader]).await;
    let ports = testkit::ports(3);
    for at in [leader, (leader + 1) % 3, (leader + 2) % 3] {
        update(&cluster.members[leader], &cluster.members[at], ports[at]).await;
        for member in &cluster.members {
            member.put("updated", &member.name).await;
        }
    }
    // Longer than an election timeout, so that broken connections would have an effect.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for member in &cluster.members {
        member.put("still", &member.name).await;
        assert_eq!(term(member).await, before, "the updates cost the leader its leadership");
    }
    for at in [leader, (leader + 1) % 3, (leader + 2) % 3] {
        cluster.members[at].kill();
        put_at_all(&cluster, "while one moves").await;
        cluster.members[at].peer_port = ports[at];
        cluster.members[at].initial_cluster.clear();
        cluster.members[at].launch();
        cluster.members[at].wait_ready();
        put_at_all(&cluster, "after a move").await;
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_wrong_address_in_an_update_takes_no_member_out_also_after_restarts() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let misspelt = (leader + 1) % 3;
    update(&cluster.members[leader], &cluster.members[misspelt], testkit::port()).await;
    put_at_all(&cluster, "misspelt").await;
    // Afterwards, each member has the address only from the list, or from the member itself.
    for at in [leader, (leader + 2) % 3, misspelt] {
        let port = cluster.members[at].peer_port;
        restart(&mut cluster.members[at], port);
        put_at_all(&cluster, "restarted").await;
    }
    // The misspelt member is needed for the quorum.
    cluster.members[(leader + 2) % 3].kill();
    put_at_all(&cluster, "two of three").await;
}
