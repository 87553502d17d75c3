//! Deadlines that clients set with the `grpc-timeout` header.
//!
//! * At the deadline the call fails with DEADLINE_EXCEEDED in etcd's words, and its pending work is
//!   dropped: a read stops within one step, and a command that was not proposed yet is withdrawn.
//! * The same applies to streams.
//! * A malformed header is rejected with the text of grpc-go.
//!
//! A call without the header costs one header look-up. A call with it creates a timer only if it has to
//! wait.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use super::guard::KnownFields;

/// gRPC allows eight digits and a unit.
const TEXT_BYTES_MAX: usize = 9;
/// Far above any sensible timeout, and within the range of the clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns the deadline of a call. `timeout` is the field if it is not among the headers.
pub fn of(known: &KnownFields<'_>, timeout: Option<&[u8]>) -> Result<Option<Instant>, Status> {
    let timeout = timeout.or(known.timeout.map(HeaderValue::as_bytes));
    let Some(text) = timeout else { return Ok(None) };
    let is_text = |text: &&str| text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let text = str::from_utf8(text).ok().filter(is_text).unwrap_or_default();
    let timeout = parsed(text).map_err(|reason| grpc_errors::malformed_timeout(&reason))?;
    Ok(Some(Instant::now() + timeout.min(TIMEOUT_MAX)))
}

/// Returns the length of a unit of gRPC's timeouts.
pub fn unit_nanoseconds(unit: &str) -> Option<u64> {
    match unit {
        "H" => Some(3_600_000_000_000),
        "M" => Some(60_000_000_000),
        "S" => Some(1_000_000_000),
        "m" => Some(1_000_000),
        "u" => Some(1_000),
        "n" => Some(1),
        _ => None,
    }
}

fn parsed(text: &str) -> Result<Duration, String> {
    match text.len() {
        0..2 => return Err(format!("transport: timeout string is too short: {text:?}")),
        2..=TEXT_BYTES_MAX => {}
        _ => return Err(format!("transport: timeout string is too long: {text:?}")),
    }
    let (digits, unit) = text.split_at(text.len() - 1);
    let nanoseconds = unit_nanoseconds(unit)
        .ok_or_else(|| format!("transport: timeout unit is not recognized: {text:?}"))?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| is_number);
    let number = number.ok_or_else(|| format!("strconv.ParseUint: parsing {digits:?}: invalid syntax"))?;
    Ok(Duration::from_nanos(number.saturating_mul(nanoseconds)))
}

/// Returns the result of `work`, unless the deadline passes first.
pub async fn within<T>(
    deadline: Option<Instant>,
    mut work: Pin<&mut impl Future<Output = Result<T, Status>>>,
) -> Result<T, Status> {
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(grpc_errors::deadline_exceeded());
    }
    let mut alarm: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        let Some(deadline) = deadline else { return Poll::Pending };
        let alarm = alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        alarm.as_mut().poll(context).map(|()| Err(grpc_errors::deadline_exceeded()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_timeout_is_read_as_grpc_go_reads_it() {
        let cases = [
            ("1H", Ok(Duration::from_secs(3600))),
            ("2M", Ok(Duration::from_secs(120))),
            ("3S", Ok(Duration::from_secs(3))),
            ("250m", Ok(Duration::from_millis(250))),
            ("7u", Ok(Duration::from_micros(7))),
            ("00000009n", Ok(Duration::from_nanos(9))),
            ("0m", Ok(Duration::ZERO)),
            ("", Err("transport: timeout string is too short: \"\"")),
            ("m", Err("transport: timeout string is too short: \"m\"")),
            ("123456789m", Err("transport: timeout string is too long: \"123456789m\"")),
            ("5x", Err("transport: timeout unit is not recognized: \"5x\"")),
            ("+5m", Err("strconv.ParseUint: parsing \"+5\": invalid syntax")),
            (" 1S", Err("strconv.ParseUint: parsing \" 1\": invalid syntax")),
            ("1S ", Err("transport: timeout unit is not recognized: \"1S \"")),
            ("-5m", Err("strconv.ParseUint: parsing \"-5\": invalid syntax")),
        ];
        for (text, wanted) in cases {
            assert_eq!(parsed(text), wanted.map_err(str::to_owned), "{text:?}");
        }
        assert!(parsed("99999999H").is_ok(), "the longest does not overflow");
    }

    #[tokio::test]
    async fn work_ends_at_its_deadline_and_a_past_one_does_not_begin() {
        let never = || std::future::pending::<Result<(), Status>>();
        let soon = Some(Instant::now() + Duration::from_millis(1));
        let refused = within(soon, pin!(never())).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (tonic::Code::DeadlineExceeded, "context deadline exceeded")
        );
        assert_eq!(within(None, pin!(async { Ok(7) })).await.unwrap(), 7);
        let begun = std::cell::Cell::new(false);
        let work = pin!(async {
            begun.set(true);
            Ok(())
        });
        assert!(within(Some(Instant::now()), work).await.is_err());
        assert!(!begun.get());
    }
}
