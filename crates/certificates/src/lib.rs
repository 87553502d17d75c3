//! Whether certificates are genuine, and what they are good for: the rules of Go's `crypto/x509`, so that a
//! certificate that etcd accepts is accepted here.
//!
//! ```text
//!   chain as shown ─▶ Certificate: read, malformed ones refused
//!                  ─▶ chain: to one of the Roots, by signatures, dates, basic constraints
//!                  ─▶ usages and name constraints of that chain ─▶ accepted
//! ```
//!
//! Invariants:
//! - Signatures are verified by ring, or by `p521` for the curve that ring lacks. No signature is read here.
//! - What is not understood is refused: an extension that is critical, a form of name constraint, a policy
//!   constraint.
//! - The search for a chain is bounded by the signatures that it verifies.
//!
//! Opens no socket, and no file but those in [`files`].

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
