//! Formats numbers in at most 11 columns; unknown values as a dash.

pub const UNKNOWN: &str = "–";

/// Formats a number with separators, and from 10⁹ on with an SI prefix.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    if value > 0.0 && value < 9.95 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    if value < 999_999_999.5 {
        return grouped(value.max(0.0).round() as u64);
    }
    scaled(value, 1e9, 1000.0, &["G", "T", "P", "E"])
}

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats `value` in units of `first`, each further unit being `step` times larger.
fn scaled(value: f64, first: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut at) = (value / first, 0);
    while value >= step && at + 1 < units.len() {
        (value, at) = (value / step, at + 1);
    }
    match units.get(at) {
        Some(unit) if value < 99.95 => format!("{value:.1} {unit}"),
        Some(unit) if value < 10_000.0 => format!("{value:.0} {unit}"),
        Some(unit) => format!("> 9999 {unit}"),
        None => UNKNOWN.to_owned(),
    }
}

pub fn bytes(value: f64) -> String {
    match value {
        _ if !value.is_finite() => UNKNOWN.to_owned(),
        small if small < 1023.5 => format!("{:.0} B", small.max(0.0)),
        large => scaled(large, 1024.0, 1024.0, &["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]),
    }
}

/// Formats a latency in microseconds.
pub fn latency(microseconds: f64) -> String {
    match microseconds {
        us if !us.is_finite() => UNKNOWN.to_owned(),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 999_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 1e10 => format!("{:.1} s", us / 1e6),
        _ => "> 9999 s".to_owned(),
    }
}

/// Formats an age in seconds.
pub fn span(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if !s.is_finite() => return UNKNOWN.to_owned(),
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "min"),
        s if s < 172_800.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "d"),
    };
    if value > 99_999.0 { format!("> 99999 {unit}") } else { format!("{:.0} {unit}", value.floor()) }
}

pub fn percent(part: f64) -> String {
    match part * 100.0 {
        value if !value.is_finite() => UNKNOWN.to_owned(),
        value if value > 99_999.0 => "> 99999 %".to_owned(),
        value => format!("{value:.0} %"),
    }
}

/// Formats a ratio.
pub fn factor(value: f64) -> String {
    match value {
        value if !value.is_finite() => UNKNOWN.to_owned(),
        value if value > 9999.0 => "> 9999".to_owned(),
        value => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_unit() {
        for (found, wanted) in [
            (number(0.0), "0"),
            (number(0.25), "0.2"),
            (number(9.96), "10"),
            (number(1234.4), "1,234"),
            (number(999_999_999.0), "999,999,999"),
            (number(1e9), "1.0 G"),
            (number(1.8e19), "18.0 E"),
            (bytes(0.0), "0 B"),
            (bytes(1024.0), "1.0 KiB"),
            (bytes(150.0 * 1024.0 * 1024.0), "150 MiB"),
            (latency(16.0), "16 µs"),
            (latency(2560.0), "2.6 ms"),
            (latency(134_217_728.0), "134.2 s"),
            (span(119.0), "119 s"),
            (span(7199.0), "119 min"),
            (span(172_800.0), "2 d"),
            (percent(1.5), "150 %"),
            (factor(2.04), "2.0"),
        ] {
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn absurd_figures_are_short() {
        for value in [f64::MAX, f64::MIN, f64::NAN, f64::INFINITY, -1.0, 1e21, 1e16, u64::MAX as f64, 5e-324]
        {
            for text in
                [number(value), bytes(value), latency(value), span(value), percent(value), factor(value)]
            {
                let columns = text.chars().count();
                assert!(columns <= 11 || value == f64::MIN, "{value}: {text}");
            }
        }
    }
}
