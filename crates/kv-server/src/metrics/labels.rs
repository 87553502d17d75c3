//! Labels of members.

use prometheus_client::encoding::EncodeLabelSet;

/// Labels of a metric about both ends of a link. Ids in hexadecimal.
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

impl To {
    /// To the member with this id.
    pub fn member(id: u64) -> To {
        To { To: format!("{id:x}") }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct From {
    pub From: String,
}

impl From {
    /// From the member with this id.
    pub fn member(id: u64) -> From {
        From { From: format!("{id:x}") }
    }
}
