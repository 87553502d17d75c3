//! Members named by the SRV records of a domain, as etcd reads them.
//!
//! * `_etcd-server-ssl._tcp` names members with `https`, `_etcd-server._tcp` those with `http`; both are
//!   read.
//! * The member whose address is one that this member advertises has its name. The others are numbered: names
//!   do not enter into ids.

use std::net::{SocketAddr, ToSocketAddrs};

use super::dns::ServiceTarget;
use config::{DiscoverySrv, Scheme, Urls};

/// Texts of etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrvError {
    #[error("{0}")]
    NoMember(String),
    #[error("cannot find local etcd member {0:?} in SRV records")]
    OwnMissing(String),
}

/// Finds the records of a name.
pub type ServiceLookup<'a> = &'a dyn Fn(&str) -> Result<Vec<ServiceTarget>, String>;

/// The members as `--initial-cluster` would name them; this one is `name` and advertises `urls`.
pub fn members(
    srv: &DiscoverySrv,
    name: &str,
    urls: &Urls,
    lookup: ServiceLookup<'_>,
) -> Result<String, SrvError> {
    let suffix = if srv.suffix.is_empty() { String::new() } else { format!("-{}", srv.suffix) };
    let (mut members, mut failures, mut is_partial) = (Vec::new(), Vec::new(), false);
    for (scheme, service) in [(Scheme::Https, "etcd-server-ssl"), (Scheme::Http, "etcd-server")] {
        let service = format!("{service}{suffix}");
        let failure = |error| format!("error querying DNS SRV records for _{service} {error}");
        let targets = match lookup(&format!("_{service}._tcp.{}", srv.domain)) {
            Ok(targets) => targets,
            Err(error) => {
                failures.push(failure(error));
                continue;
            }
        };
        match of_service(&service, scheme, targets, name, urls) {
            Ok(found) => members.extend(found),
            Err(error) => {
                failures.push(failure(error));
                is_partial = true;
            }
        }
    }
    let error = failures.join("; ");
    if members.is_empty() || is_partial {
        return Err(SrvError::NoMember(error));
    }
    if !failures.is_empty() {
        tracing::warn!(error, "failed to resolve during SRV discovery");
    }
    if !members.iter().any(|member| member.split_once('=').is_some_and(|(found, _)| found == name)) {
        return Err(SrvError::OwnMissing(name.to_owned()));
    }
    Ok(members.join(","))
}

/// Members of one service. One target that does not resolve fails all: members that see different lists would
/// found different clusters.
fn of_service(
    service: &str,
    scheme: Scheme,
    targets: Vec<ServiceTarget>,
    name: &str,
    urls: &Urls,
) -> Result<Vec<String>, String> {
    let mut members = Vec::new();
    for (number, ServiceTarget { host, port }) in targets.into_iter().enumerate() {
        let authority = format!("{host}:{port}");
        let address = resolve(&authority)?;
        let own = urls.iter().find(|url| resolve(&url.authority()).is_ok_and(|own| own == address));
        match own {
            Some(own) if own.scheme() != scheme => {
                return Err(format!(
                    "bootstrap at {scheme}://{authority} from DNS for {service} has scheme mismatch with expected \
                     peer {own}"
                ));
            }
            Some(_) => members.push(format!("{name}={scheme}://{authority}")),
            None => members.push(format!("{number}={scheme}://{authority}")),
        }
    }
    Ok(members)
}

fn resolve(authority: &str) -> Result<SocketAddr, String> {
    let mut addresses =
        authority.to_socket_addrs().map_err(|error| format!("resolve {authority}: {error}"))?;
    addresses.next().ok_or_else(|| format!("resolve {authority}: no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of `d.example`, where `records` has the targets of a name after it.
    fn found(suffix: &str, own: &str, records: &[(&str, &[(&str, u16)])]) -> Result<String, String> {
        let lookup = |name: &str| {
            let targets = records.iter().find(|(known, _)| *known == name).map(|(_, targets)| *targets);
            let target = |(host, port): &(&str, u16)| ServiceTarget { host: (*host).to_owned(), port: *port };
            let targets = targets.map(|targets| targets.iter().map(target).collect());
            targets.ok_or_else(|| format!("lookup {name} on x: no such host"))
        };
        let srv = DiscoverySrv { domain: "d.example".to_owned(), suffix: suffix.to_owned() };
        members(&srv, "me", &Urls::parse(own).unwrap(), &lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn members_are_those_of_both_services_and_this_one_is_found_by_its_address() {
        let (plain, secure) = ("_etcd-server._tcp.d.example", "_etcd-server-ssl._tcp.d.example");
        let three: &[(&str, u16)] = &[("127.0.0.1", 1), ("localhost", 2), ("127.0.0.1", 3)];
        let wanted = "0=http://127.0.0.1:1,me=http://localhost:2,2=http://127.0.0.1:3";
        assert_eq!(found("", "http://127.0.0.1:2", &[(plain, three)]), Ok(wanted.to_owned()));
        let wanted = "me=https://127.0.0.1:1,0=http://127.0.0.1:9";
        let both: [(&str, &[(&str, u16)]); 2] = [(secure, &[("127.0.0.1", 1)]), (plain, &[("127.0.0.1", 9)])];
        assert_eq!(found("", "https://127.0.0.1:1", &both), Ok(wanted.to_owned()));
        // A target without an address would be missing in this member's list only.
        let partial: [(&str, &[(&str, u16)]); 1] = [(plain, &[("127.0.0.1", 1), ("", 2)])];
        let refused = found("", "http://127.0.0.1:1", &partial).unwrap_err();
        assert!(refused.contains("resolve :2"), "{refused}");
        let suffixed: [(&str, &[(&str, u16)]); 1] = [("_etcd-server-s._tcp.d.example", &[("127.0.0.1", 1)])];
        assert_eq!(found("s", "http://127.0.0.1:1", &suffixed), Ok("me=http://127.0.0.1:1".to_owned()));
    }

    #[test]
    fn what_cannot_be_used_is_refused_in_etcds_words() {
        let plain = "_etcd-server._tcp.d.example";
        let other: [(&str, &[(&str, u16)]); 1] = [(plain, &[("127.0.0.1", 1)])];
        for (own, records, wanted) in [
            (
                "http://127.0.0.1:1",
                &[][..],
                "error querying DNS SRV records for _etcd-server-ssl lookup _etcd-server-ssl._tcp.d.example on x: no \
                 such host; error querying DNS SRV records for _etcd-server lookup \
                 _etcd-server._tcp.d.example on x: no such host",
            ),
            ("http://127.0.0.1:2", &other, "cannot find local etcd member \"me\" in SRV records"),
            (
                "https://127.0.0.1:1",
                &other,
                "error querying DNS SRV records for _etcd-server-ssl lookup _etcd-server-ssl._tcp.d.example on x: no \
                 such host; error querying DNS SRV records for _etcd-server bootstrap at http://127.0.0.1:1 from \
                 DNS for etcd-server has scheme mismatch with expected peer https://127.0.0.1:1",
            ),
        ] {
            assert_eq!(found("", own, records).expect_err(wanted), wanted);
        }
    }
}
