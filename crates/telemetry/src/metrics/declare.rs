//! Metrics that are declared in one place each, and those that are read when they are asked for.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};

/// Shows a metric that has no labels.
pub fn show(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
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
