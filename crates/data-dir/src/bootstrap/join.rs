//! Joins a running cluster: the flags must match its membership.
//!
//! * The members of `--initial-cluster` and those of the cluster must be the same, compared by
//!   their peer URLs, as in etcd.
//! * The cluster provides the ids of this member and of the cluster.

use std::collections::BTreeMap;

use state_machine::{CommandLevel, TooOld, level};

use crate::identity::{FORMAT, FirstMember, Identity};
use config::Urls;

/// A cluster as described by one of its members.
#[derive(Clone, Debug)]
pub struct RunningCluster {
    pub cluster_id: u64,
    pub members: Vec<FirstMember>,
    pub level: CommandLevel,
}

impl RunningCluster {
    /// Reports whether this is the member's cluster and includes the member.
    pub fn has(&self, identity: &Identity) -> bool {
        let lists_this = self.members.iter().any(|member| member.id == identity.member_id);
        self.cluster_id == identity.cluster_id && lists_this
    }
}

/// Reason why a member cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(
        "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given \
         URLs; start one of the members that --initial-cluster names, or correct their URLs"
    )]
    NoCluster,
    #[error(transparent)]
    TooOld(#[from] TooOld),
    #[error(
        "error validating peerURLs {running}: member count is unequal; use the --initial-cluster printed \
         by `etcdctl member add`"
    )]
    Unequal { running: String },
    #[error(
        "error validating peerURLs {running}: PeerURLs: no match found for existing member ({member:x}, [{urls}]), \
         last resolver error ({reason}); use the --initial-cluster printed by `etcdctl member add`"
    )]
    Unmatched { running: String, member: u64, urls: String, reason: String },
}

/// Returns the identity of member `name` of `cluster`, if it matches the running cluster.
pub fn identity(
    name: &str,
    cluster: &BTreeMap<String, Urls>,
    running: RunningCluster,
) -> Result<Identity, JoinError> {
    level::check(CommandLevel::OWN, running.level)?;
    let shown = shown(&running);
    if running.members.len() != cluster.len() {
        return Err(JoinError::Unequal { running: shown });
    }
    let mut members = Vec::new();
    let mut own = None;
    for member in running.members {
        let texts = member.peer_urls.iter().map(String::as_str);
        let urls = Urls::collect(texts).map_err(|error| error.to_string());
        let found = urls.and_then(|urls| {
            let same = cluster.iter().find(|(_, found)| are_same(found, &urls));
            same.map(|(name, _)| name.clone()).ok_or_else(|| format!("no member has the URLs {urls}"))
        });
        let matched = found.map_err(|reason| JoinError::Unmatched {
            running: shown.clone(),
            member: member.id,
            urls: member.peer_urls.join(" "),
            reason,
        })?;
        if matched == name {
            own = Some(member.id);
        }
        members.push(FirstMember { name: matched, ..member });
    }
    // Their URLs are distinct, so with equal counts every name was matched.
    let Some(member_id) = own else { return Err(JoinError::Unequal { running: shown }) };
    members.sort_by_key(|member| member.id);
    let cluster_id = running.cluster_id;
    Ok(Identity {
        format: FORMAT,
        cluster_id,
        member_id,
        name: name.to_owned(),
        members,
        joined: true,
        ..Identity::default()
    })
}

/// Compares by text or by address.
fn are_same(a: &Urls, b: &Urls) -> bool {
    let resolved = |urls: &Urls| {
        let mut resolved: Vec<String> = urls.iter().map(|url| url.resolved()).collect();
        resolved.sort();
        resolved
    };
    a == b || resolved(a) == resolved(b)
}

fn shown(running: &RunningCluster) -> String {
    let members = running.members.iter().map(|member| {
        let urls = member.peer_urls.join(" ");
        format!("{:x}:[{urls}]", member.id)
    });
    let members = members.collect::<Vec<_>>().join(" ");
    format!("{{ClusterID:{:x} Members:[{members}]}}", running.cluster_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(members: &[(u64, &str)]) -> RunningCluster {
        let member = |(id, url): &(u64, &str)| FirstMember {
            id: *id,
            name: String::new(),
            peer_urls: vec![(*url).to_owned()],
            is_learner: *id == 7,
        };
        let members = members.iter().map(member).collect();
        RunningCluster { cluster_id: 0xc, members, level: CommandLevel::OWN }
    }

    #[test]
    fn a_member_joins_as_whom_the_cluster_knows_it_and_is_refused_in_etcds_words() {
        let given: BTreeMap<String, Urls> = [("a", "http://127.0.0.1:1"), ("b", "http://localhost:2")]
            .map(|(name, url)| (name.to_owned(), Urls::parse(url).unwrap()))
            .into();
        let refused =
            |members: &[(u64, &str)]| identity("b", &given, running(members)).unwrap_err().to_string();
        let joined =
            identity("b", &given, running(&[(9, "http://127.0.0.1:1"), (7, "http://127.0.0.1:2")])).unwrap();
        assert_eq!((joined.member_id, joined.cluster_id, joined.joined), (7, 0xc, true));
        let names: Vec<_> =
            joined.members.iter().map(|member| (member.name.as_str(), member.is_learner)).collect();
        assert_eq!(names, [("b", true), ("a", false)]);
        let unequal = "error validating peerURLs {ClusterID:c Members:[9:[http://127.0.0.1:1]]}: member \
                       count is unequal";
        let alone = refused(&[(9, "http://127.0.0.1:1")]);
        assert!(alone.starts_with(unequal), "{alone}");
        let wrong = refused(&[(9, "http://127.0.0.1:1"), (7, "http://127.0.0.1:3")]);
        assert!(wrong.contains("no match found for existing member (7, [http://127.0.0.1:3])"), "{wrong}");
        let twice = refused(&[(9, "http://127.0.0.1:1"), (7, "http://127.0.0.1:1")]);
        assert!(twice.contains("member count is unequal"), "{twice}");
    }
}
