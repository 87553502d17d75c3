//! Automatic compaction of a running member.

use crate::common::{Cluster, put};
use api::etcdserverpb::{AuthEnableRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, RangeRequest};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn history_is_compacted_after_its_period_also_while_permissions_are_checked() {
    let cluster = Cluster::started_with(1, &["--auto-compaction-retention=1s", "--bcrypt-cost=4"]);
    let member = &cluster.members[0];
    let old = member.put("a", "1").await;
    let kept = member.put("a", "2").await;
    member.running().wait_for(&format!("\"completed auto compaction\",\"revision\":{kept}"));
    let at = |revision| RangeRequest { key: "a".into(), revision, ..RangeRequest::default() };
    let refused = member.kv().await.range(at(old)).await.expect_err("it is compacted");
    assert_eq!(refused.code(), Code::OutOfRange);
    assert!(member.kv().await.range(at(kept)).await.is_ok());

    let client = member.client().await;
    let mut auth = client.auth();
    let (name, password) = ("root".to_owned(), "pw".to_owned());
    let user = AuthUserAddRequest { name: name.clone(), password: password.clone(), ..Default::default() };
    auth.user_add(user).await.expect("a new user");
    auth.user_grant_role(AuthUserGrantRoleRequest { user: name.clone(), role: name.clone() })
        .await
        .expect("the role of root is made with its first user");
    auth.auth_enable(AuthEnableRequest {}).await.expect("root has its role");
    let token = client.authenticate(&name, &password).await.expect("the password");
    let answer = client.with_token(Some(token)).kv().put(put("a", "3")).await.expect("root may write");
    let newest = answer.into_inner().header.expect("every answer has a header").revision;
    member.running().wait_for(&format!("\"completed auto compaction\",\"revision\":{newest}"));
}
