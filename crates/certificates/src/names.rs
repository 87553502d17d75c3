//! Subject alternative names: matches them with host names and checks name constraints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::{GeneralName, NameConstraints};

use super::certificate::{Certificate, CertificateRefusal, is_domain};

/// Maximum comparisons per chain. Bounds the cost of a certificate with thousands of names and
/// constraints.
const COMPARED_MAX: u32 = 250_000;

/// Reports whether a certificate is valid for a host name or an IP address. The common name is
/// ignored.
pub fn is_valid_for(certificate: &Certificate<'_>, host: &str) -> bool {
    let names = certificate.names().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        let is_it = |bytes: &[u8]| address_of(bytes) == Some(address.to_canonical());
        return names.iter().any(|name| matches!(name, GeneralName::IPAddress(bytes) if is_it(bytes)));
    }
    names.iter().any(|name| matches!(name, GeneralName::DNSName(pattern) if is_host(host, pattern)))
}

/// Matches a host name with a pattern. A wildcard must be the complete first label and matches
/// exactly one label. Strings that are not host names are compared literally.
fn is_host(host: &str, pattern: &str) -> bool {
    let bare = host.strip_suffix('.').unwrap_or(host);
    if !is_host_name(bare) || !is_host_name(pattern.strip_prefix("*.").unwrap_or(pattern)) {
        return !matches!(host, "" | ".") && host.eq_ignore_ascii_case(pattern);
    }
    match (pattern.strip_prefix("*."), bare.split_once('.')) {
        (Some(parent), Some((_, rest))) => rest.eq_ignore_ascii_case(parent),
        (Some(_), None) => false,
        (None, _) => bare.eq_ignore_ascii_case(pattern),
    }
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_usual)
    };
    name.split('.').all(is_label)
}

/// Decodes an IP address. An IPv4-mapped IPv6 address is converted to IPv4.
fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
}

/// Checks that the names of each certificate in a chain, leaf first, are permitted by all its
/// issuers.
pub fn check_constraints(chain: &[&Certificate<'_>]) -> Result<(), CertificateRefusal> {
    let mut left = COMPARED_MAX;
    for (at, certificate) in chain.iter().enumerate() {
        let names = certificate.names().unwrap_or_default();
        for above in chain.iter().skip(at + 1) {
            let Some(constraints) = above.name_constraints() else { continue };
            for name in names {
                let size = [&constraints.permitted_subtrees, &constraints.excluded_subtrees];
                let size: usize = size.into_iter().flatten().map(Vec::len).sum();
                let size = u32::try_from(size).ok();
                let rest = size.and_then(|size| left.checked_sub(size));
                left = rest.ok_or(CertificateRefusal::TooLarge(COMPARED_MAX))?;
                if !is_permitted(name, constraints) {
                    let (authority, name) = (above.subject_text(), format!("{:?}", name.to_string()));
                    return Err(CertificateRefusal::Constrained { authority, name });
                }
            }
        }
    }
    Ok(())
}

/// Reports whether constraints permit a name. Constraints only apply to names of the same kind.
/// Names of other kinds are accepted here; constraints of other kinds have been rejected earlier.
fn is_permitted(name: &GeneralName<'_>, constraints: &NameConstraints<'_>) -> bool {
    let Some(subject) = Subject::of(name) else { return false };
    let permitted = constraints.permitted_subtrees.iter().flatten();
    let permitted: Vec<bool> = permitted.filter_map(|tree| subject.is_within(&tree.base)).collect();
    let mut excluded = constraints.excluded_subtrees.iter().flatten();
    (permitted.is_empty() || permitted.contains(&true)) && !excluded.any(|tree| subject.touches(&tree.base))
}

enum Subject<'a> {
    Host(&'a str),
    Mailbox(&'a str, &'a str),
    HostOfUri(String),
    Address(&'a [u8]),
    Other,
}

impl<'a> Subject<'a> {
    /// Parses a name. Returns None if it cannot be compared.
    fn of(name: &'a GeneralName<'_>) -> Option<Subject<'a>> {
        match name {
            GeneralName::DNSName(name) => Some(Subject::Host(name)).filter(|_| is_domain(name)),
            GeneralName::RFC822Name(name) => {
                let (local, domain) = name.split_once('@')?;
                let is_plain = is_domain(local) && !local.contains(['"', '\\']) && !domain.contains('@');
                Some(Subject::Mailbox(local, domain)).filter(|_| is_plain && is_domain(domain))
            }
            GeneralName::URI(uri) => {
                let uri = uri.parse::<http::Uri>().ok().filter(|uri| uri.scheme().is_some())?;
                let host = uri.host().filter(|host| is_domain(host) && !host.starts_with('['))?;
                Some(Subject::HostOfUri(host.to_owned())).filter(|_| host.parse::<IpAddr>().is_err())
            }
            GeneralName::IPAddress(bytes) => Some(Subject::Address(bytes)),
            _ => Some(Subject::Other),
        }
    }

    /// Reports whether it is in a subtree; None if the subtree has a different kind.
    fn is_within(&self, tree: &GeneralName<'_>) -> Option<bool> {
        match (self, tree) {
            (Subject::Host(name), GeneralName::DNSName(domain)) => Some(is_below(name, domain)),
            (Subject::HostOfUri(name), GeneralName::URI(domain)) => Some(is_below(name, domain)),
            (Subject::Mailbox(local, host), GeneralName::RFC822Name(domain)) => {
                Some(match domain.rsplit_once('@') {
                    Some((known, domain)) => known == *local && domain.eq_ignore_ascii_case(host),
                    None => is_below(host, domain),
                })
            }
            (Subject::Address(bytes), GeneralName::IPAddress(network)) => Some(is_in_network(bytes, network)),
            _ => None,
        }
    }

    /// Reports whether it overlaps a subtree. A wildcard matches every name in its domain.
    fn touches(&self, tree: &GeneralName<'_>) -> bool {
        let is_parent = match (self, tree) {
            (Subject::Host(name), GeneralName::DNSName(domain)) => {
                let parents = (name.strip_prefix("*."), domain.split_once('.'));
                matches!(parents, (Some(of), Some((_, parent))) if of.eq_ignore_ascii_case(parent))
            }
            _ => false,
        };
        is_parent || self.is_within(tree) == Some(true)
    }
}

/// Reports whether `name` is `domain` or a subdomain. A domain with a leading dot matches only its
/// subdomains; an empty one matches every name.
fn is_below(name: &str, domain: &str) -> bool {
    let Some(start) = name.len().checked_sub(domain.len()) else { return false };
    let (Some(head), Some(tail)) = (name.get(..start), name.get(start..)) else { return false };
    let is_whole = head.is_empty() || head.ends_with('.') || domain.starts_with('.') || domain.is_empty();
    is_whole && tail.eq_ignore_ascii_case(domain)
}

/// Reports whether an address is in a network, given as address and mask. The address families must
/// match.
fn is_in_network(bytes: &[u8], network: &[u8]) -> bool {
    let address = match address_of(bytes) {
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
        None => return false,
    };
    let (base, mask) = network.split_at(network.len() / 2);
    let is_equal = |((byte, base), mask): ((&u8, &u8), &u8)| byte & mask == base & mask;
    base.len() == address.len() && address.iter().zip(base).zip(mask).all(is_equal)
}
