//! Discovery through another cluster: `--discovery-token` and `--discovery-endpoints`.

use crate::common::{Cluster, Member};
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
};

/// Sets discovery flags. They follow the member's other flags, and override its cluster flags.
fn discovers(member: &mut Member, registry: &Member, token: &str) {
    member.extra = vec![
        "--initial-cluster=".to_owned(),
        format!("--discovery-endpoints=127.0.0.1:1,http://127.0.0.1:{}", registry.client_port),
        format!("--discovery-token={token}"),
    ];
}

fn refused(member: &mut Member, text: &str) {
    member.launch();
    let (status, said) = member.process.take().unwrap().wait_end();
    assert!(status.code() == Some(1) && said.contains(text), "{status}: {said}");
}

async fn registered(registry: &Member) -> Vec<(String, String)> {
    let (key, range_end) = ("/_etcd/registry/t/members/", "/_etcd/registry/t/members0");
    let request = RangeRequest { key: key.into(), range_end: range_end.into(), ..RangeRequest::default() };
    let answer = registry.kv().await.range(request).await.unwrap().into_inner();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    answer.kvs.iter().map(|pair| (text(&pair.key[key.len()..]), text(&pair.value))).collect()
}

#[tokio::test]
async fn as_many_members_as_were_agreed_on_make_a_cluster_and_one_more_is_refused() {
    let registry = Cluster::started(1);
    let registry = &registry.members[0];
    let mut cluster = Cluster::new(3);
    cluster.members.iter_mut().for_each(|member| discovers(member, registry, "t"));
    refused(&mut cluster.members[0], "failed to join discovery cluster (discovery: size key not found)");
    registry.put("/_etcd/registry/t/_config/size", "many").await;
    refused(&mut cluster.members[0], "failed to join discovery cluster (discovery: size key is bad)");
    registry.put("/_etcd/registry/t/_config/size", "2").await;

    // The first member is killed while it waits, and resumes its registration.
    cluster.members[0].launch();
    cluster.members[0].running().wait_for("waiting for more peers");
    cluster.members[0].kill();
    cluster.members[0].launch();
    cluster.members[1].launch();
    cluster.members[..2].iter().for_each(Member::wait_ready);
    refused(&mut cluster.members[2], "failed to join discovery cluster (discovery: cluster is full)");

    let mut wanted = Vec::new();
    for member in &cluster.members[..2] {
        let config = format!("{}=http://127.0.0.1:{}", member.name, member.peer_port);
        wanted.push((format!("{:x}", member.id().await), config));
    }
    wanted.sort();
    assert_eq!(registered(registry).await, wanted);
    cluster.members[0].put("a", "1").await;
    assert_eq!(cluster.members[1].get("a").await.as_deref(), Some("1"));

    // A restart does not use discovery.
    cluster.members[1].kill();
    discovers(&mut cluster.members[1], &Cluster::new(1).members[0], "t");
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    assert_eq!(cluster.members[1].get("a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_registration_that_is_no_member_is_logged_once_until_it_changes() {
    let registry = Cluster::started(1);
    let registry = &registry.members[0];
    registry.put("/_etcd/registry/t/_config/size", "9").await;
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    discovers(member, registry, "t");
    for (key, config, logged) in [
        ("stray", "no member", "no member"),
        ("b", "b=http://127.0.0.1:1", "\"found\":2"),
        ("c", "c=http://127.0.0.1:2", "\"found\":3"),
        ("stray", "no member either", "no member either"),
        ("d", "d=http://127.0.0.1:3", "\"found\":4"),
    ] {
        registry.put(&format!("/_etcd/registry/t/members/{key}"), config).await;
        if member.process.is_none() {
            member.launch();
        }
        // Wait until the change is logged, so that a later poll of the registry sees the next change.
        member.running().wait_for(logged);
    }
    let said = member.running().said();
    assert_eq!(said.matches("ignored invalid member registration").count(), 2, "{said}");
}

#[tokio::test]
async fn a_registry_with_users_is_asked_as_one_of_them() {
    let registry = Cluster::started(1);
    let registry = &registry.members[0];
    registry.put("/_etcd/registry/t/_config/size", "1").await;
    let mut auth = registry.client().await.auth();
    let (name, password) = ("root".to_owned(), "secret".to_owned());
    let user = AuthUserAddRequest { name: name.clone(), password, ..AuthUserAddRequest::default() };
    auth.user_add(user).await.unwrap();
    auth.role_add(AuthRoleAddRequest { name: name.clone() }).await.unwrap();
    auth.user_grant_role(AuthUserGrantRoleRequest { user: name.clone(), role: name }).await.unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    discovers(member, registry, "t");
    member.extra.extend(["--discovery-user=root".to_owned(), "--discovery-password=secret".to_owned()]);
    member.launch();
    member.wait_ready();
    member.put("a", "1").await;
}
