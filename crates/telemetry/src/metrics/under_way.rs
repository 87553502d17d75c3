//! Counts what is under way.

use prometheus_client::metrics::gauge::Gauge;

/// Something that is under way, counted until this is dropped, however it ends.
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
