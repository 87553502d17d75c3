//! Search for a certificate chain to a trusted root.
//!
//! Depth first: roots before intermediates, in the given order. The first chain that passes every
//! check is accepted.

use std::collections::{HashMap, HashSet};

use tokio_rustls::rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};

use super::certificate::{Certificate, CertificateRefusal};
use super::names::check_constraints;

/// Maximum signature verifications per search, as in Go; most chains need two. Bounds the cost of a
/// client that sends many intermediates with the same name.
const SIGNATURES_MAX: u32 = 100;

/// Role of the certificate's owner in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    Server,
    Client,
}

impl CertificatePurpose {
    fn name(self) -> &'static str {
        match self {
            CertificatePurpose::Server => "servers",
            CertificatePurpose::Client => "clients",
        }
    }
}

/// Trusted certificates. Most are authorities; any other certificate is only trusted directly.
#[derive(Debug, Default)]
pub struct Roots {
    by_subject: HashMap<Vec<u8>, Vec<CertificateDer<'static>>>,
}

impl Roots {
    pub fn add(&mut self, der: CertificateDer<'static>) -> Result<(), CertificateRefusal> {
        let subject = Certificate::parse(&der)?.subject().to_vec();
        let of_subject = self.by_subject.entry(subject).or_default();
        if !of_subject.contains(&der) {
            of_subject.push(der);
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.by_subject.is_empty()
    }

    pub fn subjects(&self) -> impl Iterator<Item = &[u8]> {
        self.by_subject.keys().map(Vec::as_slice)
    }

    /// Checks that `leaf` chains to one of the roots and may be used for `purpose` at `now`.
    pub fn check(
        &self,
        leaf: &Certificate<'_>,
        intermediates: &[Certificate<'_>],
        purpose: CertificatePurpose,
        now: i64,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), CertificateRefusal> {
        leaf.check_at(now)?;
        let of_subject = self.by_subject.get(leaf.subject());
        if of_subject.is_some_and(|roots| roots.iter().any(|root| root.as_ref() == leaf.der)) {
            return check_whole(&[leaf], purpose);
        }
        let issuers: HashSet<&[u8]> =
            intermediates.iter().chain([leaf]).map(|certificate| certificate.issuer()).collect();
        let roots = issuers.iter().filter_map(|issuer| self.by_subject.get(*issuer)).flatten();
        let roots = roots.map(|der| Certificate::parse(der)).collect::<Result<Vec<_>, _>>()?;
        let left = SIGNATURES_MAX;
        let mut search =
            ChainSearch { roots: &roots, intermediates, purpose, now, algorithms, left, why: None };
        if search.extend(&[leaf]) {
            return Ok(());
        }
        Err(search.why.unwrap_or_else(|| {
            let (subject, issuer) = (leaf.subject_text(), leaf.issuer_text());
            CertificateRefusal::UnknownIssuer { subject, issuer }
        }))
    }
}

struct ChainSearch<'a> {
    roots: &'a [Certificate<'a>],
    intermediates: &'a [Certificate<'a>],
    purpose: CertificatePurpose,
    now: i64,
    algorithms: &'a [&'a dyn SignatureVerificationAlgorithm],
    left: u32,
    /// Reason for rejecting the first chain.
    why: Option<CertificateRefusal>,
}

impl ChainSearch<'_> {
    /// Reports whether `chain`, from the leaf upwards, can be extended to a root.
    fn extend(&mut self, chain: &[&Certificate<'_>]) -> bool {
        let Some(child) = chain.last() else { return false };
        let (roots, intermediates) = (self.roots, self.intermediates);
        let candidates = roots.iter().map(|root| (true, root));
        let candidates = candidates.chain(intermediates.iter().map(|other| (false, other)));
        for (is_root, issuer) in candidates.filter(|(_, issuer)| issuer.subject() == child.issuer()) {
            if self.left == 0 {
                self.why = Some(CertificateRefusal::TooLarge(SIGNATURES_MAX));
                return false;
            }
            self.left -= 1;
            if chain.iter().any(|known| known.stands_for_same(issuer)) {
                continue;
            }
            let longer = [chain, &[issuer]].concat();
            let checked = self.check_issuer(child, issuer, is_root, chain.len() - 1);
            let checked = checked.and_then(|()| match is_root {
                true => check_whole(&longer, self.purpose).map(|()| true),
                false => Ok(self.extend(&longer)),
            });
            match checked {
                Ok(true) => return true,
                Ok(false) => {}
                Err(refusal) => self.why = self.why.take().or(Some(refusal)),
            }
        }
        false
    }

    fn check_issuer(
        &self,
        child: &Certificate<'_>,
        issuer: &Certificate<'_>,
        is_root: bool,
        intermediates: usize,
    ) -> Result<(), CertificateRefusal> {
        issuer.check_authority(!is_root)?;
        child.check_signature(issuer, self.algorithms)?;
        issuer.check_at(self.now).map_err(|refusal| CertificateRefusal::Above(Box::new(refusal)))?;
        issuer.check_path(intermediates)
    }
}

/// Checks the constraints that apply to a complete chain, from the leaf to its root.
fn check_whole(chain: &[&Certificate<'_>], purpose: CertificatePurpose) -> Result<(), CertificateRefusal> {
    let below_root = chain.split_last().map_or(&[][..], |(_, below)| below);
    if let Some(one) = below_root.iter().find(|certificate| certificate.has_policy_constraints()) {
        return Err(CertificateRefusal::Policy { subject: one.subject_text() });
    }
    let is_for = |certificate: &&&Certificate<'_>| {
        let (servers, clients) = certificate.usages();
        if purpose == CertificatePurpose::Server { servers } else { clients }
    };
    let other = chain.iter().find(|certificate| !is_for(certificate));
    if let Some(other) = other.filter(|_| !base::mutant("any-usage")) {
        return Err(CertificateRefusal::Usage { subject: other.subject_text(), purpose: purpose.name() });
    }
    check_constraints(chain)
}
