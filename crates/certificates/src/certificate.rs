//! A parsed certificate. Rejects what Go's parser rejects, and ignores what it ignores.

use tokio_rustls::rustls::pki_types::SignatureVerificationAlgorithm;
use x509_parser::asn1_rs::ToDer;
use x509_parser::extensions::{GeneralName, NameConstraints, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate, X509Extension};
use x509_parser::x509::AlgorithmIdentifier;

use super::der::{DerValue, after_der, is_der, wrapped};
use super::distinguished::Name;

/// Maximum number of characters of a name to display, since the peer chooses it.
const SHOWN_MAX: usize = 128;
/// Maximum nesting depth of DER values. Names in extensions use eight levels.
const DEPTH_MAX: usize = 32;
/// Last arcs of the extensions below `id-ce` (2.5.29) that Go understands.
const READ: [&str; 12] = ["14", "15", "17", "19", "30", "31", "32", "33", "35", "36", "37", "54"];

/// Reason for rejecting a certificate or its chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRefusal {
    #[error("cannot parse certificate: {0}")]
    Unreadable(&'static str),
    #[error("the certificate of {subject} has an unknown critical extension: {oid}")]
    NotUnderstood { subject: String, oid: String },
    #[error("the certificate of {subject} has expired: it was valid until {}", date(*.end))]
    Expired { subject: String, now: i64, end: i64 },
    #[error("the certificate of {subject} is not valid before {}", date(*.start))]
    NotYetValid { subject: String, now: i64, start: i64 },
    #[error("the certificate of {subject} is not signed by a trusted CA: its issuer is {issuer}")]
    UnknownIssuer { subject: String, issuer: String },
    #[error("{0} is not a CA that may sign certificates")]
    NoAuthority(String),
    #[error(
        "the signature of the certificate of {subject} does not match {issuer}, or its algorithm is \
         unsupported"
    )]
    Signature { subject: String, issuer: String },
    #[error("{0} permits fewer intermediate CAs")]
    PathLength(String),
    #[error("the certificate of {subject} has unsupported policy constraints")]
    Policy { subject: String },
    #[error("the certificate of {subject} has no extended key usage for {purpose}")]
    Usage { subject: String, purpose: &'static str },
    #[error("{authority} does not permit the name {name}")]
    Constrained { authority: String, name: String },
    /// An issuer in the chain was rejected.
    #[error("{0}")]
    Above(Box<CertificateRefusal>),
    #[error("verification needs more than {0} signature or name checks")]
    TooLarge(u32),
}

/// Formats seconds since the Unix epoch according to RFC 3339.
pub fn date(seconds: i64) -> String {
    let since = std::time::Duration::from_secs(seconds.max(0).unsigned_abs());
    let time = std::time::UNIX_EPOCH.checked_add(since);
    time.map_or_else(|| seconds.to_string(), |time| humantime::format_rfc3339_seconds(time).to_string())
}

#[derive(Debug)]
pub struct Certificate<'a> {
    pub der: &'a [u8],
    subject: Name<'a>,
    issuer: Name<'a>,
    x509: X509Certificate<'a>,
}

impl<'a> Certificate<'a> {
    pub fn parse(der: &'a [u8]) -> Result<Certificate<'a>, CertificateRefusal> {
        let wrong = |what| Err(CertificateRefusal::Unreadable(what));
        let Ok((rest, x509)) = X509Certificate::from_der(der) else {
            return wrong("not a DER-encoded X.509 certificate");
        };
        let unsigned = [
            wrapped(0x30, &content(&x509.signature_algorithm)),
            wrapped(0x03, &[&[0], &x509.signature_value.data[..]].concat()),
        ];
        let whole = wrapped(0x30, &[x509.tbs_certificate.as_ref(), &unsigned.concat()].concat());
        let extensions = x509.extensions();
        let key = &x509.public_key().subject_public_key;
        if !rest.is_empty() {
            return wrong("there are bytes after its end");
        } else if whole != der || !is_der(x509.tbs_certificate.as_ref(), DEPTH_MAX) {
            return wrong("it is not in DER");
        } else if x509.version.0 > 2 {
            return wrong("its version is unknown");
        } else if x509.version.0 < 2 && !extensions.is_empty() {
            return wrong("it has extensions, which its version does not know");
        } else if x509.raw_serial().first().is_none_or(|byte| byte & 0x80 != 0) {
            return wrong("its serial number is negative");
        } else if x509.signature != x509.signature_algorithm {
            return wrong("it names two algorithms of its signature");
        } else if key.unused_bits != 0 {
            return wrong("the key is not a whole number of bytes");
        } else if x509.extensions_map().is_err() {
            return wrong("it has an extension twice");
        } else if extensions.iter().any(is_malformed) {
            return wrong("an extension is malformed");
        }
        let Some([issuer, subject]) = names(der) else { return wrong("a name is malformed") };
        Ok(Certificate { der, subject, issuer, x509 })
    }

    /// Returns the last common name of the subject, or an empty string.
    pub fn common_name(&self) -> &str {
        self.subject.common_name()
    }

    pub fn serial(&self) -> Vec<u8> {
        self.x509.tbs_certificate.serial.to_bytes_be()
    }

    /// Returns the DER-encoded subject. Names are compared byte by byte.
    pub fn subject(&self) -> &'a [u8] {
        self.subject.raw
    }

    pub fn issuer(&self) -> &'a [u8] {
        self.issuer.raw
    }

    pub fn subject_text(&self) -> String {
        shown(&self.subject.to_string())
    }

    pub fn issuer_text(&self) -> String {
        shown(&self.issuer.to_string())
    }

    /// Returns the public key and its algorithm, in DER.
    pub fn key_info(&self) -> &'a [u8] {
        self.x509.tbs_certificate.subject_pki.raw
    }

    /// Returns the expiry time, in seconds since the Unix epoch.
    pub fn end(&self) -> i64 {
        self.x509.validity().not_after.timestamp()
    }

    /// Checks its validity at `now`, without the signature.
    pub fn check_at(&self, now: i64) -> Result<(), CertificateRefusal> {
        let subject = || self.subject_text();
        let unknown = self.x509.extensions().iter().find(|extension| !is_understood(extension));
        if let Some(extension) = unknown {
            let oid = extension.oid.to_id_string();
            return Err(CertificateRefusal::NotUnderstood { subject: subject(), oid });
        }
        let start = self.x509.validity().not_before.timestamp();
        if now < start {
            return Err(CertificateRefusal::NotYetValid { subject: subject(), now, start });
        }
        let end = self.end();
        if now > end { Err(CertificateRefusal::Expired { subject: subject(), now, end }) } else { Ok(()) }
    }

    /// Checks that it may sign certificates. Version 1 and 2 certificates cannot declare this; they
    /// are accepted as roots only.
    pub fn check_authority(&self, needs_to_say_so: bool) -> Result<(), CertificateRefusal> {
        let says = self.x509.basic_constraints().ok().flatten().map(|extension| extension.value.ca);
        let signs = self.x509.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
        let is_old = self.x509.version.0 < 2;
        if says.unwrap_or(is_old && !needs_to_say_so) && signs {
            Ok(())
        } else {
            Err(CertificateRefusal::NoAuthority(self.subject_text()))
        }
    }

    /// Checks the path length constraint for a chain with this many intermediates.
    pub fn check_path(&self, intermediates: usize) -> Result<(), CertificateRefusal> {
        let basic = self.x509.basic_constraints().ok().flatten();
        let most = basic.and_then(|extension| extension.value.path_len_constraint);
        if most.is_none_or(|most| intermediates <= most as usize) {
            Ok(())
        } else {
            Err(CertificateRefusal::PathLength(self.subject_text()))
        }
    }

    pub fn check_signature(
        &self,
        issuer: &Certificate<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), CertificateRefusal> {
        let (message, signature) = (self.x509.tbs_certificate.as_ref(), &self.x509.signature_value.data);
        let algorithm = content(&self.x509.signature_algorithm);
        let fitting = algorithms.iter().filter(|known| known.signature_alg_id().as_ref() == algorithm);
        if fitting.copied().any(|known| issuer.has_signed(known, message, signature)) {
            return Ok(());
        }
        let (subject, issuer) = (self.subject_text(), issuer.subject_text());
        Err(CertificateRefusal::Signature { subject, issuer })
    }

    /// Reports whether its key signed `message` with an algorithm.
    pub fn has_signed(
        &self,
        algorithm: &dyn SignatureVerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let key = self.x509.public_key();
        content(&key.algorithm) == algorithm.public_key_alg_id().as_ref()
            && algorithm.verify_signature(&key.subject_public_key.data, message, signature).is_ok()
    }

    /// Reports whether it is valid for TLS servers and for TLS clients.
    pub fn usages(&self) -> (bool, bool) {
        let usage = self.x509.extended_key_usage().ok().flatten().map(|extension| extension.value);
        usage.map_or((true, true), |usage| (usage.any || usage.server_auth, usage.any || usage.client_auth))
    }

    pub fn has_policy_constraints(&self) -> bool {
        let is_one = |extension: &X509Extension<'_>| {
            use ParsedExtension::{InhibitAnyPolicy, PolicyConstraints, PolicyMappings};
            let parsed = extension.parsed_extension();
            matches!(parsed, PolicyConstraints(_) | PolicyMappings(_) | InhibitAnyPolicy(_))
        };
        self.x509.extensions().iter().any(is_one)
    }

    /// Returns the subject alternative names, or None without the extension.
    pub fn names(&self) -> Option<&[GeneralName<'a>]> {
        let extension = self.x509.subject_alternative_name().ok().flatten()?;
        Some(&extension.value.general_names)
    }

    pub fn name_constraints(&self) -> Option<&NameConstraints<'_>> {
        Some(self.x509.name_constraints().ok().flatten()?.value)
    }

    /// Reports whether the two certificates differ only in signature, dates or constraints. A chain
    /// needs only one of them.
    pub fn stands_for_same(&self, other: &Certificate<'_>) -> bool {
        self.subject() == other.subject()
            && self.key_info() == other.key_info()
            && self.names() == other.names()
    }
}

/// Extracts issuer and subject. The parser skips the attributes after an empty set, so its names
/// are not used.
fn names(der: &[u8]) -> Option<[Name<'_>; 2]> {
    let signed = DerValue::first(der)?.inside(0x30)?.into_iter().next()?.inside(0x30)?;
    let without_version = signed.iter().skip_while(|value| value.tag == 0xa0);
    let mut names = without_version.skip(2).step_by(2).map(Name::read);
    Some([names.next()??, names.next()??])
}

fn shown(name: &str) -> String {
    let cut: String = name.chars().take(SHOWN_MAX).collect();
    format!("{cut:?}")
}

/// Returns the contents of an algorithm identifier, for comparison.
fn content(algorithm: &AlgorithmIdentifier<'_>) -> Vec<u8> {
    let mut der = algorithm.algorithm.to_der_vec().unwrap_or_default();
    let parameters = algorithm.parameters.as_ref().map(|any| any.to_der_vec().unwrap_or_default());
    der.extend(parameters.unwrap_or_default());
    der
}

fn is_malformed(extension: &X509Extension<'_>) -> bool {
    let oid = extension.oid.to_id_string();
    let is_read = oid.strip_prefix("2.5.29.").is_some_and(|arc| READ.contains(&arc));
    if is_read && after_der(extension.value, DEPTH_MAX).is_none() {
        return true;
    }
    match extension.parsed_extension() {
        ParsedExtension::ParseError { .. } => extension.critical || is_read,
        ParsedExtension::SubjectAlternativeName(names) => names.general_names.iter().any(|name| match name {
            GeneralName::RFC822Name(text) | GeneralName::DNSName(text) | GeneralName::URI(text) => {
                !text.is_ascii()
            }
            GeneralName::IPAddress(bytes) => !matches!(bytes.len(), 4 | 16),
            GeneralName::Invalid(tag, _) => matches!(tag.0, 1 | 2 | 6 | 7),
            _ => false,
        }),
        ParsedExtension::NameConstraints(constraints) => {
            let trees = constraints.permitted_subtrees.iter().chain(&constraints.excluded_subtrees);
            let mut trees = trees.flatten().peekable();
            trees.peek().is_none() || trees.any(|tree| !is_constraint(&tree.base))
        }
        _ => false,
    }
}

/// Reports whether a name consists of non-empty labels without spaces.
pub fn is_domain(name: &str) -> bool {
    name.split('.').all(|label| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Reports whether names can be compared with a constraint. An excluded subtree that matches no
/// name would have no effect.
fn is_constraint(name: &GeneralName<'_>) -> bool {
    let is_host = |name: &str| name.is_empty() || is_domain(name.strip_prefix('.').unwrap_or(name));
    match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => is_host(name),
        GeneralName::RFC822Name(name) => match name.rsplit_once('@') {
            Some((local, host)) => is_domain(local) && is_domain(host),
            None => is_host(name),
        },
        GeneralName::IPAddress(network) => {
            let (_, mask) = network.split_at(network.len() / 2);
            let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
            let leading = mask.iter().take_while(|byte| **byte == 0xff).count();
            let next = mask.get(leading).map_or(0, |byte| byte.leading_ones());
            matches!(network.len(), 8 | 32) && leading as u32 * 8 + next == ones
        }
        _ => true,
    }
}

/// Reports whether an extension is supported or may be ignored. Name constraints of an unknown kind
/// are never ignored.
fn is_understood(extension: &X509Extension<'_>) -> bool {
    let is_checked = |name: &GeneralName<'_>| {
        use GeneralName::{DNSName, IPAddress, RFC822Name, URI};
        matches!(name, DNSName(_) | RFC822Name(_) | URI(_) | IPAddress(_))
    };
    match extension.parsed_extension() {
        ParsedExtension::NameConstraints(constraints) => {
            let trees = constraints.permitted_subtrees.iter().chain(&constraints.excluded_subtrees);
            trees.flatten().all(|tree| is_checked(&tree.base))
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            !extension.critical || names.general_names.iter().any(is_checked)
        }
        ParsedExtension::KeyUsage(_)
        | ParsedExtension::BasicConstraints(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::CRLDistributionPoints(_)
        | ParsedExtension::CertificatePolicies(_)
        | ParsedExtension::PolicyMappings(_)
        | ParsedExtension::PolicyConstraints(_)
        | ParsedExtension::InhibitAnyPolicy(_) => true,
        _ => !extension.critical,
    }
}
