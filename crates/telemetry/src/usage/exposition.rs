//! The largest clients and prefixes as metrics. Gauges: a name comes and goes with its window.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::tally::{Measure, Top, Usage};

impl Usage {
    /// Writes at most six families with `--metrics-top` series each.
    pub fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let rows = self.rows();
        for (label, mut rows) in [("client", rows.clients), ("prefix", rows.prefixes)] {
            for measure in Measure::ALL {
                let (what, of): (_, fn(&Top) -> f64) = match measure {
                    Measure::Requests => ("requests", |top| top.requests),
                    Measure::Bytes => ("bytes", |top| top.bytes),
                    Measure::Keys => ("keys", |top| top.keys),
                };
                rows.sort_by(|a, b| of(b).total_cmp(&of(a)));
                let name = format!("kv_server_top_{label}_{what}_per_second");
                let help = format!("The largest by {what}, in the last full window of 10 s, by samples");
                let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
                for top in rows.iter().filter(|top| of(top) > 0.0).take(self.entries()) {
                    let labels = [(label, top.name.as_str())];
                    ConstGauge::new(of(top)).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
