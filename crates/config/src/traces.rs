//! Trace settings: `--enable-distributed-tracing` and its companions.

use super::flags::TraceFlags;
use telemetry::traces::TraceSettings;

const MILLION: i64 = 1_000_000;

/// Invalid sampling rate, with etcd's error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTraces {
    #[error("distributed tracing configurition is not valid: (tracing sampling rate must be positive)")]
    Negative,
    #[error(
        "distributed tracing configurition is not valid: (tracing sampling rate must be less than {MILLION})"
    )]
    TooMany,
}

/// Returns the trace settings, or None if tracing is disabled; the other flags are not validated then.
pub fn of(flags: &TraceFlags) -> Result<Option<TraceSettings>, InvalidTraces> {
    if !flags.enable_distributed_tracing {
        return Ok(None);
    }
    let per_million = flags.distributed_tracing_sampling_rate;
    if per_million < 0 {
        return Err(InvalidTraces::Negative);
    }
    if per_million > MILLION {
        return Err(InvalidTraces::TooMany);
    }
    Ok(Some(TraceSettings {
        address: flags.distributed_tracing_address.clone(),
        service_name: flags.distributed_tracing_service_name.clone(),
        instance_id: flags.distributed_tracing_instance_id.clone().filter(|id| !id.is_empty()),
        sampled: per_million as f64 / MILLION as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedFlags, parse};

    #[test]
    fn a_rate_is_refused_in_etcds_words_and_only_if_traces_are_on() {
        let rate = |enabled, rate| {
            let line = [
                format!("--enable-distributed-tracing={enabled}"),
                format!("--distributed-tracing-sampling-rate={rate}"),
            ];
            let Ok(ParsedFlags::Flags(flags, _)) = parse(line.map(Into::into), []) else { panic!("{rate}") };
            of(&flags.traces)
        };
        for (given, wanted) in [
            (
                -1,
                Err(
                    "distributed tracing configurition is not valid: (tracing sampling rate must be positive)",
                ),
            ),
            (
                1_000_001,
                Err(
                    "distributed tracing configurition is not valid: (tracing sampling rate must be less than \
                     1000000)",
                ),
            ),
            (1_000_000, Ok(1.0)),
            (0, Ok(0.0)),
        ] {
            let read = rate(true, given).map(|on| on.unwrap().sampled).map_err(|error| error.to_string());
            assert_eq!(read, wanted.map_err(str::to_owned));
            assert_eq!(rate(false, given), Ok(None));
        }
    }
}
