//! `kvctl member replace`: interruptions, unreachable members, users.

use api::etcdserverpb::{AuthEnableRequest, AuthUserAddRequest, AuthUserGrantRoleRequest};

use crate::common::{Cluster, Member};
use crate::start;

fn peer_url(member: &Member) -> String {
    format!("http://127.0.0.1:{}", member.peer_port)
}

/// Starts `member replace OLD m3=…`, where m3 is the last member of `cluster`.
fn replace(cluster: &Cluster, old: &str, seconds: &str) -> testkit::Process {
    replace_with(cluster, old, &["--timeout", seconds])
}

fn replace_with(cluster: &Cluster, old: &str, flags: &[&str]) -> testkit::Process {
    let new = cluster.members.last().unwrap();
    let endpoints: Vec<String> =
        cluster.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect();
    let (new, endpoints) = (format!("{}={}", new.name, peer_url(new)), endpoints.join(","));
    start(&[&["member", "replace", old, &new, "--endpoints", &endpoints], flags].concat())
}

async fn names(member: &Member) -> Vec<String> {
    let listed = member.client().await.members(true).await.unwrap();
    let mut names: Vec<String> = listed.into_iter().map(|member| member.name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_replacement_that_is_killed_after_any_step_goes_on() {
    let mut cluster = Cluster::started(3);
    cluster.members[0].put("before", "1").await;
    let at = cluster.joiner(&[0, 1, 2]);
    for step in ["added m3 as a learner", "start it now", "waiting for m3"] {
        let run = replace(&cluster, "m1", "60");
        run.wait_for(step);
        run.kill();
    }
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    let run = replace(&cluster, "m1", "60");
    run.wait_for("promoted m3");
    run.kill();
    let (status, said) = replace(&cluster, "m1", "60").wait_end();
    assert!(!status.success() && said.contains("run again with --promoted"), "{said}");
    let run = replace_with(&cluster, "m1", &["--promoted"]);
    run.wait_for("removed m1");
    run.kill();
    let (status, said) = replace(&cluster, "m1", "60").wait_end();
    assert!(status.success() && said.contains("m3 replaced m1"), "{said}");
    let (_, said) = cluster.members[1].process.take().unwrap().wait_end();
    assert!(said.contains("the member has been permanently removed from the cluster"), "{said}");
    // The line of before with another OLD only removes a member.
    let (status, said) = replace(&cluster, "m2", "60").wait_end();
    assert!(!status.success() && said.contains("m3 votes already, and m2 is a member as well"), "{said}");
    assert_eq!(names(&cluster.members[0]).await, ["m0", "m2", "m3"]);
    assert_eq!(cluster.members[at].get("before").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_silent_member_is_removed_before_another_one_takes_its_place() {
    let mut cluster = Cluster::started(3);
    let at = cluster.joiner(&[0, 1]);
    cluster.members[2].kill();
    let (status, said) = replace_with(&cluster, "m2", &["--dry-run"]).wait_end();
    assert!(status.success() && said.contains("1. remove m2, which is unreachable"), "{said}");
    assert_eq!(names(&cluster.members[0]).await, ["m0", "m1", "m2"]);
    let run = replace_with(&cluster, "m2", &["--grace", "1"]);
    run.wait_for("removed m2");
    run.wait_for("start it now");
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    let (status, said) = run.wait_end();
    assert!(status.success(), "{said}");
    assert_eq!(names(&cluster.members[0]).await, ["m0", "m1", "m3"]);
    // What does not answer as a member is refused at once.
    let peers = peer_url(&cluster.members[0]);
    let (status, said) =
        start(&["member", "replace", "m1", "m4=http://127.0.0.1:1", "--endpoints", &peers]).wait_end();
    assert!(!status.success() && said.contains("use client URLs, not peer URLs"), "{said}");
    // One of three cannot decide anything.
    cluster.members[1].kill();
    cluster.members[at].kill();
    cluster.joiner(&[0]);
    let (status, said) = replace_with(&cluster, "m1", &["--timeout", "1", "--grace", "0"]).wait_end();
    assert!(!status.success() && said.contains("no progress within 1 s"), "{said}");
}

#[tokio::test]
async fn a_member_that_answers_again_within_the_grace_is_not_removed_first() {
    let mut cluster = Cluster::started(3);
    cluster.joiner(&[0, 1]);
    cluster.members[2].kill();
    let run = replace_with(&cluster, "m2", &["--grace", "3600"]);
    run.wait_for("is unreachable: it is removed in");
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    run.wait_for("added m3 as a learner");
    run.kill();
    assert_eq!(names(&cluster.members[0]).await, ["", "m0", "m1", "m2"]);
}

/// The new member does not know the token that the command had before it was added.
#[tokio::test]
async fn a_lone_member_is_replaced_where_users_are_checked() {
    let mut cluster = Cluster::started_with(1, &["--bcrypt-cost=4"]);
    let mut users = cluster.members[0].client().await.auth();
    let (name, password) = ("root".to_owned(), "secret".to_owned());
    users.user_add(AuthUserAddRequest { name, password, ..Default::default() }).await.unwrap();
    let (user, role) = ("root".to_owned(), "root".to_owned());
    users.user_grant_role(AuthUserGrantRoleRequest { user, role }).await.unwrap();
    users.auth_enable(AuthEnableRequest {}).await.unwrap();
    let at = cluster.joiner(&[0]);
    let run = replace_with(&cluster, "m0", &["--user=root:secret", "--timeout=20"]);
    run.wait_for("waiting for m1");
    cluster.members[at].launch();
    let (status, said) = tokio::task::spawn_blocking(|| run.wait_end()).await.unwrap();
    assert!(status.success() && said.contains("m1 replaced m0"), "{said}");
}
