//! Users named by certificates.

use api::authpb::{Permission, UserAddOptions};
use api::etcdserverpb::*;
use client::Client;
use tonic::{Code, Request};

use super::authority::{Authority, Files, GOOD, Wish};
use super::caller::{BOTH, Caller};
use super::{as_strs, in_files, secure_clients, start_one};
use crate::common::{Cluster, put};

const DENIED: (Code, &str) = (Code::PermissionDenied, "etcdserver: permission denied");
const UNNAMED: (Code, &str) = (Code::InvalidArgument, "etcdserver: user name is empty");
const INVALID: (Code, &str) = (Code::Unauthenticated, "etcdserver: invalid auth token");

/// Puts a key, with metadata.
async fn put_as(client: &Client, key: &str, fields: &[(&'static str, &str)]) -> Result<(), (Code, String)> {
    let mut request = Request::new(put(key, "1"));
    for (field, value) in fields {
        request.metadata_mut().insert(*field, value.parse().unwrap());
    }
    let answer = client.kv().put(request).await;
    answer.map(drop).map_err(|status| (status.code(), status.message().to_owned()))
}

/// Creates `root` and `u` without passwords, and `p` with a password. `u` and `p` have permissions for [a,
/// b). Returns a token of `p`.
async fn set_up_users(root: &Client) -> String {
    let mut client = root.auth();
    for name in ["root", "u", "p"] {
        let options = Some(UserAddOptions { no_password: name != "p" });
        let password = if name == "p" { "secret" } else { "" }.to_owned();
        let user = AuthUserAddRequest { name: name.to_owned(), password, options, ..Default::default() };
        client.user_add(user).await.unwrap();
    }
    client.role_add(AuthRoleAddRequest { name: "r".to_owned() }).await.unwrap();
    let perm = Some(Permission { perm_type: 2, key: "a".into(), range_end: "b".into() });
    let grant = AuthRoleGrantPermissionRequest { name: "r".to_owned(), perm };
    client.role_grant_permission(grant).await.unwrap();
    for (user, role) in [("root", "root"), ("u", "r"), ("p", "r")] {
        let grant = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        client.user_grant_role(grant).await.unwrap();
    }
    client.auth_enable(AuthEnableRequest {}).await.unwrap();
    let login = AuthenticateRequest { name: "p".to_owned(), password: "secret".to_owned() };
    client.authenticate(login).await.unwrap().into_inner().token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_the_user_of_calls_without_a_token() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    let pairs = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
    let mut flags = in_files(&files, &pairs);
    flags.push("--bcrypt-cost=4".to_owned());
    flags.push("--client-cert-auth".to_owned());
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let mut cluster = start_one(cluster);
    let port = cluster.members[0].client_port;
    let caller =
        |common_name| Caller::new(&authority, Some(&authority.issue(Wish { common_name, ..GOOD })), BOTH);
    let (root, u, stranger) = (caller("root"), caller("u"), caller("stranger"));
    let (root_client, u_client) = (root.client(port).await, u.client(port).await);
    let token = set_up_users(&root_client).await;
    let stranger_client = stranger.client(port).await;
    for (what, client, key, fields, wanted) in [
        ("root", &root_client, "z", &[][..], Ok(())),
        ("u", &u_client, "a", &[], Ok(())),
        ("u elsewhere", &u_client, "z", &[], Err(DENIED)),
        ("no user", &stranger_client, "a", &[], Err(DENIED)),
        ("a token counts before the name", &root_client, "z", &[("token", token.as_str())], Err(DENIED)),
        ("a token of another user", &stranger_client, "a", &[("token", token.as_str())], Ok(())),
        ("a wrong token", &root_client, "z", &[("token", "wrong.1")], Err(INVALID)),
        ("a gateway of the client", &root_client, "z", &[("grpcgateway-accept", "*/*")], Err(UNNAMED)),
    ] {
        let got = put_as(client, key, fields).await;
        let wanted = wanted.map_err(|(code, text): (Code, &str)| (code, text.to_owned()));
        assert_eq!(got, wanted, "{what}");
    }
    let listed = u_client.auth().user_list(AuthUserListRequest {}).await;
    assert_eq!(listed.unwrap_err().code(), Code::PermissionDenied);
    let listed = stranger_client.auth().user_list(AuthUserListRequest {}).await;
    assert_eq!(listed.unwrap_err().message(), "etcdserver: user name not found");
    let through_gateway = root.post(port, "/v3/kv/put", r#"{"key":"eg==","value":"MQ=="}"#);
    assert!(through_gateway.contains(UNNAMED.1), "{through_gateway}");

    // Certificates required without the flag do not name a user.
    cluster.members[0].kill();
    cluster.members[0].extra.retain(|flag| flag != "--client-cert-auth");
    let cluster = start_one(cluster);
    let got = put_as(&root.client(cluster.members[0].client_port).await, "z", &[]).await;
    assert_eq!(got, Err((UNNAMED.0, UNNAMED.1.to_owned())));
}
