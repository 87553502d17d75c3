//! Labels of members. Their values are ids of listed members in hexadecimal, or `unknown`: series are never
//! dropped, so a stranger may not choose them.

use prometheus_client::encoding::EncodeLabelSet;

/// Labels of a metric about both ends of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct PeerLink {
    pub Local: String,
    pub Remote: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct To {
    pub To: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct From {
    pub From: String,
}

/// Texts of the table of errors: a bounded number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct Reason {
    pub Reason: String,
}
