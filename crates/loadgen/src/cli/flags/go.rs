//! Values in the syntax of Go's flag library, which the documented command lines of etcd's tool use.

use std::ffi::OsString;
use std::time::Duration;

/// Parses a Go duration: `0`, `300ms`, `1.5s`, `2h45m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is no duration (like 300ms, 1.5s or 2h45m)");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        seconds += number.parse::<f64>().map_err(|_| invalid())? * unit_seconds;
        rest = tail;
    }
    if text.is_empty() { Err(invalid()) } else { Duration::try_from_secs_f64(seconds).map_err(|_| invalid()) }
}

/// Replaces `--switch=true` with `--switch`. `--switch=false` removes itself and an earlier `--switch`.
/// Other values remain for clap to reject.
pub fn plain_switches(arguments: Vec<OsString>, switches: &[String]) -> Vec<OsString> {
    let mut plain: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let switch = argument.to_str().and_then(|text| text.strip_prefix("--")?.split_once('='));
        match switch {
            Some((name, value)) if switches.iter().any(|switch| switch == name) => match boolean(value) {
                Ok(true) => plain.push(format!("--{name}").into()),
                Ok(false) => plain.retain(|before| before.to_str() != Some(&format!("--{name}"))),
                Err(_) => plain.push(argument),
            },
            _ => plain.push(argument),
        }
    }
    plain
}

/// Parses a Go boolean.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_syntax_of_go() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("300ms", 300),
            ("1.5s", 1_500),
            ("2h45m", 9_900_000),
            ("1m0.5s", 60_500),
            ("1000us", 1),
            ("1000µs", 1),
            ("2000000ns", 2),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1d", "1.2.3s", "1s5", "∞"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn switches_may_carry_a_value() {
        let plain = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from).collect();
            let plain = plain_switches(arguments, &["sample".into(), "precise".into()]);
            plain.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(plain(&["put", "--sample=true", "--total=5"]), "put --sample --total=5");
        assert_eq!(plain(&["--sample", "--precise", "--sample=false"]), "--precise");
        assert_eq!(plain(&["--sample=maybe"]), "--sample=maybe");
    }

    #[test]
    fn booleans_have_the_syntax_of_go() {
        assert_eq!((boolean("t"), boolean("False")), (Ok(true), Ok(false)));
        assert!(boolean("yes").is_err());
    }
}
