//! Number formats: significant digits only, groups of three, units outside.

use std::time::{Duration, UNIX_EPOCH};

/// Formats a count or rate: `44,341`, `583`, `7.25`.
pub fn count(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "–".into(),
        magnitude if magnitude >= 99.95 => grouped(value.round()),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// Formats a quantity with about three digits: `1,204`, `22.4`, `1.62`, `0.058`.
pub fn quantity(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "–".into(),
        0.0 => "0".into(),
        magnitude if magnitude >= 99.95 => grouped(value.round()),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        magnitude if magnitude >= 0.9995 => format!("{value:.2}"),
        magnitude if magnitude >= 0.000_5 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a published number with its published digits: `44,341`, `1.6`, `0.7`.
pub fn given(value: f64) -> String {
    if value.abs() >= 100.0 {
        return count(value);
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a count with its noun: `1 row`, `2 rows`.
pub fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{} {one}s", grouped(count as f64)) }
}

/// Formats a ratio: `1.82×`, `0.055×`, `12.4×`.
pub fn ratio(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "–".into(),
        _ if value >= 99.5 => format!("{}×", grouped(value.round())),
        _ if value >= 9.95 => format!("{value:.1}×"),
        _ if value >= 0.095 => format!("{value:.2}×"),
        _ => format!("{value:.3}×"),
    }
}

/// Formats a relative difference, 0.12 for 12 %: `+12 %`, `−5 %`, `0 %`.
pub fn change(part: f64) -> String {
    let percent = (part * 100.0).round();
    match percent {
        _ if !percent.is_finite() => "–".into(),
        0.0 => "0 %".into(),
        _ if percent > 0.0 => format!("+{} %", grouped(percent)),
        _ => format!("{} %", grouped(percent)),
    }
}

/// Formats a tick label: `0`, `500`, `20k`, `1.5M`, `0.05`.
pub fn tick(value: f64) -> String {
    let plain = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        magnitude if magnitude >= 1e6 => format!("{}M", plain(value / 1e6)),
        magnitude if magnitude >= 1e4 => format!("{}k", plain(value / 1e3)),
        magnitude if magnitude >= 1e3 => grouped(value),
        0.0 => "0".into(),
        magnitude if magnitude < 1e-3 => format!("{value:e}"),
        _ => plain(value),
    }
}

/// Formats a byte size with a binary unit: `256 B`, `2 KiB`, `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    for (unit, name) in [(1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit {
            return format!("{} {name}", tick(bytes as f64 / unit as f64));
        }
    }
    format!("{bytes} B")
}

/// Formats a fraction: `10 %`, `0.5 %`.
pub fn percent(part: f64) -> String {
    format!("{} %", tick(part * 100.0))
}

/// Formats a duration: `45 s`, `12 min 5 s`, `2 h 3 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats Unix time in UTC: `2026-11-21 09:12 UTC`.
pub fn moment(unix_seconds: u64) -> String {
    // The last second of the year 9999.
    let since = Duration::from_secs(unix_seconds.min(253_402_300_799));
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string();
    format!("{} {} UTC", &text[..10], &text[11..16])
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("−{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_as_many_as_carry_meaning() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (9.99, "9.99"),
            (9.999, "10.0"),
            (99.96, "100"),
            (583.2, "583"),
            (44_341.4, "44,341"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(count(value), expected);
        }
        for (value, expected) in [
            (0.0, "0"),
            (0.0584, "0.058"),
            (0.000_01, "1.0e-5"),
            (1.618, "1.62"),
            (22.41, "22.4"),
            (1204.4, "1,204"),
        ] {
            assert_eq!(quantity(value), expected);
        }
    }

    #[test]
    fn ratios_ticks_and_sizes_are_short() {
        for (value, expected) in [(1.824, "1.82×"), (0.0554, "0.055×"), (12.44, "12.4×"), (1250.0, "1,250×")]
        {
            assert_eq!(ratio(value), expected);
        }
        for (value, expected) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (500.0, "500"),
            (2_000.0, "2,000"),
            (20_000.0, "20k"),
            (1_500_000.0, "1.5M"),
            (0.000_1, "1e-4"),
        ] {
            assert_eq!(tick(value), expected);
        }
        for (value, expected) in
            [(44_341.0, "44,341"), (1.6, "1.6"), (0.7, "0.7"), (37_924.91, "37,925"), (22.0, "22")]
        {
            assert_eq!(given(value), expected);
        }
        assert_eq!((counted(1, "row"), counted(1200, "row")), ("1 row".into(), "1,200 rows".into()));
        for (bytes, expected) in [(256, "256 B"), (2048, "2 KiB"), (1536 << 10, "1.5 MiB")] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn times_are_formatted_as_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_795_251_120, "2026-11-21 08:52 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(moment(seconds), expected);
        }
        for (seconds, expected) in [(44.6, "45 s"), (725.0, "12 min 5 s"), (7_380.0, "2 h 3 min")] {
            assert_eq!(duration(seconds), expected);
        }
        assert_eq!((percent(0.1), percent(0.005)), ("10 %".into(), "0.5 %".into()));
    }
}
