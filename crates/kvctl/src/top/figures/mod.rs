//! The members' documents, sanitized for display: limits, rates, sums.

mod clean; // texts of servers

mod fetch; // the document of one endpoint

mod endpoint; // its last two documents, and rates between them

mod cluster; // all endpoints together

pub use cluster::{ClusterFigures, Headline, NamedMember, Scope, TopNames, UnaskedMember};
pub use endpoint::{Calls, Endpoint};
#[cfg(test)]
pub use fetch::document_of;
pub use fetch::{Absence, AddressError, DocumentSource};
