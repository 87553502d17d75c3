//! Declaration of metrics in one place, metrics evaluated per scrape, labels and buckets.
//!
//! Member labels are hexadecimal ids from the membership, or `unknown`: series are never dropped, so
//! arbitrary peers must not be able to create them.

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Encodes a metric without labels.
pub fn show(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), std::fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Declares a struct of metrics: `field: type = first value => name, help;`. Without a first value it is the
/// type's default. The order of the fields is that of the exposition.
#[macro_export]
macro_rules! declare_metrics {
    (
        $(#[$attribute:meta])* $visibility:vis struct $group:ident {
            $($(#[$note:meta])* $field:ident: $kind:ty $(= $first:expr)? => $name:literal, $help:literal;)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility struct $group {
            $($(#[$note])* pub $field: $kind,)*
        }

        impl Default for $group {
            fn default() -> Self {
                $group { $($field: $crate::declare_metrics!(@first $($first)?),)* }
            }
        }

        impl $group {
            pub fn register(&self, registry: &mut ::prometheus_client::registry::Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
            }
        }
    };
    (@first $first:expr) => { $first };
    (@first) => { Default::default() };
}

/// etcd's buckets for disk operations: 1 ms to 8 s.
pub(super) fn disk_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

/// etcd's buckets for the network: 0.1 ms to 3 s.
pub(super) fn network_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 16))
}

/// Labels of a metric about a link between two members.
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

/// Texts of the error table: a bounded number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case, reason = "label names are etcd's")]
pub struct Reason {
    pub Reason: String,
}

/// Counts an operation in progress until dropped.
#[derive(Debug)]
pub struct UnderWay(Gauge);

impl UnderWay {
    pub fn new(gauge: &Gauge) -> UnderWay {
        gauge.inc();
        UnderWay(gauge.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.dec();
    }
}
