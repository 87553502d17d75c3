//! Restores of several members while the archive grows: they start with the same state, or refuse to start.

use std::path::Path;
use std::time::Duration;

use crate::archive::{archiver, lone_cluster, restore, wait_for};
use crate::common::{Cluster, Member, Process, put};
use api::etcdserverpb::{AuthUserAddRequest, AuthUserListRequest, CompactionRequest, RangeRequest};

const UNLIKE: &str = "initial members have different states";

fn restored(archive: &Path, member: &Member, flags: &[&str]) -> String {
    let (is_made, said) = restore(archive, member, flags);
    assert!(is_made, "{flags:?}: {said}");
    said
}

async fn users(member: &Member) -> Vec<String> {
    let mut auth = member.client().await.auth();
    auth.user_list(AuthUserListRequest {}).await.unwrap().into_inner().users
}

/// Compacts a source at this revision and adds a user, which does not create a revision. Returns once the
/// archive has a base with both.
async fn change_without_revision(source: &Member, archiver: &Process, revision: i64, user: &str) {
    let compaction = CompactionRequest { revision: revision - 1, physical: true };
    source.kv().await.compact(compaction).await.unwrap();
    let user = AuthUserAddRequest { name: user.into(), password: "s3cret".into(), ..Default::default() };
    source.client().await.auth().user_add(user).await.unwrap();
    archiver.wait_for(&format!("base at revision {revision}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_equal_whatever_is_archived_between_their_restores() {
    let (cluster, _directory, archive) = lone_cluster();
    let source = &cluster.members[0];
    let archiver = archiver(source, &archive, &[]);
    archiver.wait_for("archiving");
    source.put("a", "old").await;
    let mut last = source.put("a", "1").await;
    for (by_time, user) in [(false, "first"), (true, "second")] {
        let then = wait_for(&archive, last).await;
        let since = std::time::UNIX_EPOCH + Duration::from_millis(then.cast_unsigned());
        let time = format!("--time={}", humantime::format_rfc3339_millis(since));
        let known = users(source).await;
        let mut new = Cluster::new(3);
        let first = if by_time { time } else { format!("--revision={last}") };
        let said = restored(&archive, &new.members[0], &[&first]);
        change_without_revision(source, &archiver, last, user).await;
        // The flags printed by the first restore.
        let printed = said.lines().find_map(|line| line.strip_prefix("restore the other members with "));
        assert_eq!(printed.is_some(), by_time, "{said}");
        let flags: Vec<&str> = printed.map_or_else(|| vec![first.as_str()], |line| line.split(' ').collect());
        for member in &new.members[1..] {
            assert!(restored(&archive, member, &flags).contains(&format!("revision {last}")), "{flags:?}");
        }
        new.start();
        for member in &new.members {
            assert_eq!(users(member).await, known, "{flags:?}");
            assert!(!member.running().said().contains(UNLIKE));
        }
        let revision = new.members[0].put("b", "1").await;
        new.assert_equal(revision).await;
        // Without a target, the latest users are restored.
        let mut lone = Cluster::new(1);
        restored(&archive, &lone.members[0], &[]);
        lone.start();
        assert_eq!(users(&lone.members[0]).await, users(source).await);
        last = source.put("a", "2").await;
    }
    archiver.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_were_restored_to_unlike_states_do_not_begin_together() {
    let (cluster, _directory, archive) = lone_cluster();
    let source = &cluster.members[0];
    let archiver = archiver(source, &archive, &[]);
    archiver.wait_for("archiving");
    source.put("a", "1").await;
    source.put("a", "2").await;
    let last = source.put("a", "3").await;
    wait_for(&archive, last).await;
    change_without_revision(source, &archiver, last, "late").await;
    archiver.kill();
    let at = |revision: i64| format!("--revision={revision}");
    for (unlike, name) in [
        (vec![at(last - 1)], "another revision"),
        (vec![at(last), "--time=9999-01-01T00:00:00Z".to_owned()], "another compaction, and other users"),
    ] {
        let mut new = Cluster::new(3);
        let unlike: Vec<&str> = unlike.iter().map(String::as_str).collect();
        restored(&archive, &new.members[0], &unlike);
        new.members[1..].iter().for_each(|member| drop(restored(&archive, member, &[&at(last)])));
        new.members[..2].iter_mut().for_each(Member::launch);
        for member in &new.members[..2] {
            member.running().wait_for(UNLIKE);
            assert!(!member.running().said().contains("elected leader"), "{name}");
        }
        // Two of three members have the same state, and the third receives it.
        new.members[2].launch();
        new.members.iter().for_each(Member::wait_ready);
        let old = RangeRequest { key: "a".into(), revision: last - 1, ..RangeRequest::default() };
        for member in &new.members {
            let found = member.kv().await.range(old.clone()).await.unwrap().into_inner();
            assert_eq!(found.kvs[0].value, "2", "{name}");
            assert_eq!(users(member).await, Vec::<String>::new(), "{name}");
        }
        let revision = new.members[0].kv().await.put(put("b", "1")).await.unwrap().into_inner().header;
        assert_eq!(revision.unwrap().revision, last + 1, "{name}");
        new.assert_equal(last + 1).await;
    }
}
