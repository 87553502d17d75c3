//! Verifies certificates by the rules of Go's `crypto/x509`, so that a certificate that etcd
//! accepts is accepted here.
//!
//! ```text
//!   presented chain ─▶ Certificate: parse, reject malformed certificates
//!                   ─▶ chain: to one of the Roots, by signatures, dates, basic constraints
//!                   ─▶ usages and name constraints of that chain ─▶ accepted
//! ```
//!
//! Invariants:
//! - Signatures are verified by ring, or by `p521` for the curve that ring lacks; never in this
//!   crate.
//! - Unsupported critical extensions, policy constraints and kinds of name constraints are
//!   rejected.
//! - The search for a chain is bounded by the number of signatures that it verifies.
//!
//! Opens no sockets, and only the files in [`files`].

mod der; // values
mod distinguished; // names of subjects and issuers

mod certificate; // one, as read
mod curve; // P-521
mod names; // host names, name constraints

mod chain; // to a root

mod verifier; // rustls's questions

mod files; // read and compared

pub use certificate::{Certificate, CertificateRefusal, date};
pub use chain::Roots;
pub use curve::with_p521;
pub use files::{CertificatePair, FileError, PemFile, system_roots};
pub use names::is_valid_for;
pub use verifier::{ChainCheck, Verifier};
