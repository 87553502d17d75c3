//! Automatic compaction of a running member.

use crate::common::{Cluster, put};
use api::etcdserverpb::{
    AuthEnableRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, AuthenticateRequest, RangeRequest,
};
use tonic::{Code, Request};

#[tokio::test(flavor = "multi_thread")]
async fn history_is_compacted_after_its_period_also_while_permissions_are_checked() {
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    member.extra.extend(["--auto-compaction-retention=1s", "--bcrypt-cost=4"].map(str::to_owned));
    member.launch();
    member.wait_ready();
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
    let token = auth.authenticate(AuthenticateRequest { name, password }).await.expect("the password");
    let mut request = Request::new(put("a", "3"));
    let token = token.into_inner().token.parse().expect("a token is text");
    request.metadata_mut().insert("token", token);
    let answer = client.kv().put(request).await.expect("root may write");
    let newest = answer.into_inner().header.expect("every answer has a header").revision;
    member.running().wait_for(&format!("\"completed auto compaction\",\"revision\":{newest}"));
}
