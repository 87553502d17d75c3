//! Members from the SRV records of a domain, interpreted like etcd.
//!
//! * Targets of `_etcd-server-ssl._tcp` use `https`, targets of `_etcd-server._tcp` use `http`. Both names
//!   are queried.
//! * The target with an address that this member advertises gets its name. Other targets are numbered: names
//!   are not part of member IDs.

use std::net::{SocketAddr, ToSocketAddrs};

use super::dns::ServiceTarget;
use config::{DiscoverySrv, Scheme, Urls};

/// Failed SRV discovery, with etcd's error texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrvError {
    #[error("{0}")]
    NoMember(String),
    #[error("cannot find local etcd member {0:?} in SRV records")]
    OwnMissing(String),
}

/// Returns the SRV targets of a name.
pub type ServiceLookup<'a> = &'a dyn Fn(&str) -> Result<Vec<ServiceTarget>, String>;

/// Returns the members in the format of `--initial-cluster`. This member is `name` and advertises `urls`.
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

/// Returns a service's members. Fails if any target does not resolve: members with different lists would
/// bootstrap different clusters.
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

    /// Runs the lookup for `d.example`. `records` maps record names to targets.
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
        // An unresolvable target must not be skipped: only this member's list would lack it.
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
