//! `--config-file`: a YAML or JSON mapping of flags to values, as assignments of those flags.
//!
//! * Keys are names of flags. TLS has two sections, `client-transport-security` and
//!   `peer-transport-security`, with separate names. So has discovery: `discovery-config`.
//! * A list is joined by commas. A missing value is none.
//! * A number is nanoseconds where the flag is a length of time, as in etcd.

use std::io::ErrorKind;
use std::path::Path;

use process::files;
use serde_json::{Map, Value};
use serde_saphyr::UserMessageFormatter;

use super::accepted::{AcceptedFlag, Kind};
use super::assignments::flag_kind;
use super::errors::FlagError;

/// Flags of this server that are lengths of time.
const DURATIONS: [&str; 12] = [
    "corrupt-check-time",
    "compact-hash-check-time",
    "grpc-keepalive-min-time",
    "grpc-keepalive-interval",
    "grpc-keepalive-timeout",
    "watch-progress-notify-interval",
    "warning-unary-request-duration",
    "warning-apply-duration",
    "discovery-dial-timeout",
    "discovery-request-timeout",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
];

const CLIENT_SECTION: &str = "client-transport-security";
const PEER_SECTION: &str = "peer-transport-security";

/// Keys of the section of the client port, and their flags.
const CLIENT_KEYS: [(&str, &str); 9] = [
    ("cert-file", "cert-file"),
    ("key-file", "key-file"),
    ("client-cert-file", "client-cert-file"),
    ("client-key-file", "client-key-file"),
    ("client-cert-auth", "client-cert-auth"),
    ("trusted-ca-file", "trusted-ca-file"),
    ("auto-tls", "auto-tls"),
    ("allowed-cn", "client-cert-allowed-cn"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
];
/// Keys of the section of the peer port, and their flags.
const PEER_KEYS: [(&str, &str); 10] = [
    ("cert-file", "peer-cert-file"),
    ("key-file", "peer-key-file"),
    ("client-cert-file", "peer-client-cert-file"),
    ("client-key-file", "peer-client-key-file"),
    ("client-cert-auth", "peer-client-cert-auth"),
    ("trusted-ca-file", "peer-trusted-ca-file"),
    ("auto-tls", "peer-auto-tls"),
    ("allowed-cn", "peer-cert-allowed-cn"),
    ("allowed-hostname", "peer-cert-allowed-hostname"),
    ("skip-client-san-verification", "peer-skip-client-san-verification"),
];
const SOCKET_KEYS: [(&str, &str); 2] =
    [("reuse-port", "socket-reuse-port"), ("reuse-address", "socket-reuse-address")];
/// Keys of the section of discovery, and their flags. A dot leads to a key inside.
const DISCOVERY_KEYS: [(&str, &str); 13] = [
    ("token", "discovery-token"),
    ("client.endpoints", "discovery-endpoints"),
    ("client.dial-timeout", "discovery-dial-timeout"),
    ("client.request-timeout", "discovery-request-timeout"),
    ("client.keepalive-time", "discovery-keepalive-time"),
    ("client.keepalive-timeout", "discovery-keepalive-timeout"),
    ("client.secure.insecure-transport", "discovery-insecure-transport"),
    ("client.secure.insecure-skip-tls-verify", "discovery-insecure-skip-tls-verify"),
    ("client.secure.cert", "discovery-cert"),
    ("client.secure.key", "discovery-key"),
    ("client.secure.cacert", "discovery-cacert"),
    ("client.auth.username", "discovery-user"),
    ("client.auth.password", "discovery-password"),
];

/// The text of a configuration file, which is a regular file: a pipe would be waited for.
pub fn read(path: &str) -> Result<String, FlagError> {
    let refused = |reason: String| FlagError::Refused(format!("open {path}: {reason}"));
    let bytes = files::read(Path::new(path)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused("no such file or directory; correct --config-file".to_owned()),
        ErrorKind::FileTooLarge => {
            refused(format!("a configuration file has at most {} bytes", files::BYTES_MAX))
        }
        _ => refused(error.to_string()),
    })?;
    String::from_utf8(bytes).map_err(|error| refused(error.utf8_error().to_string()))
}

/// Returns flags and values in the order of the file's keys. The error is a parse error.
pub fn assignments(text: &str) -> Result<Vec<(String, String)>, String> {
    // Without the lines around the place of the error, which may hold a password.
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        let reason = error.without_snippet().render_with_formatter(&UserMessageFormatter);
        format!("error unmarshaling the configuration file: {reason}")
    })?;
    let keys = match value {
        Value::Object(keys) => keys,
        Value::Null => Map::new(),
        _ => return Err("error unmarshaling the configuration file: not a mapping of keys".to_owned()),
    };
    let mut found = Vec::new();
    for (key, value) in keys {
        let section = match key.as_str() {
            CLIENT_SECTION => &CLIENT_KEYS[..],
            PEER_SECTION => &PEER_KEYS,
            "socket-options" => &SOCKET_KEYS,
            "discovery-config" => &DISCOVERY_KEYS,
            _ => {
                match scalar(&key, &value) {
                    // An unknown key may have any value.
                    Err(_) if flag_kind(&key).is_err() => found.push((key, String::new())),
                    text => found.extend(text?.map(|text| (key, text))),
                }
                continue;
            }
        };
        from_section(&key, section, value, &mut found)?;
    }
    Ok(found)
}

fn from_section(
    name: &str,
    keys: &[(&str, &str)],
    section: Value,
    found: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let section = match section {
        Value::Object(section) => section,
        Value::Null => return Ok(()),
        _ => {
            return Err(format!(
                "error unmarshaling the configuration file: {name} is not a mapping of keys"
            ));
        }
    };
    for (key, value) in flattened(section) {
        let flag = keys.iter().find(|(known, _)| *known == key).map(|(_, flag)| *flag);
        let Some(text) = scalar(flag.unwrap_or(&key), &value)? else { continue };
        found.push((flag.map_or_else(|| format!("{name}.{key}"), str::to_owned), text));
    }
    Ok(())
}

/// Keys with the keys inside them: `a: {b: 1}` is `a.b`. The reader of YAML bounds the depth.
fn flattened(section: Map<String, Value>) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (key, value) in section {
        match value {
            Value::Object(inner) => {
                let inner = flattened(inner).into_iter();
                flat.extend(inner.map(|(below, value)| (format!("{key}.{below}"), value)));
            }
            value => flat.push((key, value)),
        }
    }
    flat
}

/// The value as a command line would give it; None if there is none.
fn scalar(flag: &str, value: &Value) -> Result<Option<String>, String> {
    let is_duration = DURATIONS.contains(&flag)
        || AcceptedFlag::find(flag).is_some_and(|accepted| accepted.kind == Kind::Duration);
    match value {
        Value::Null => Ok(None),
        Value::Bool(is_on) => Ok(Some(is_on.to_string())),
        Value::Number(number) if is_duration => Ok(Some(format!("{number}ns"))),
        // `1e3` is one.
        Value::Number(number) if number.is_f64() => Ok(number.as_f64().map(|number| number.to_string())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(values) => {
            let texts: Result<Vec<_>, _> = values.iter().map(|value| scalar(flag, value)).collect();
            Ok(Some(texts?.into_iter().flatten().collect::<Vec<_>>().join(",")))
        }
        Value::Object(_) => {
            Err(format!("error unmarshaling the configuration file: {flag} does not accept a mapping"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sections_become_flags() {
        let cases = [
            ("", ""),
            ("name: a\nwal-dir:\n", "name=a"),
            ("snapshot-count: 1e3\nmax-txn-ops: 0x10", "max-txn-ops=16 snapshot-count=1000"),
            ("base: &b {name: x}\n<<: *b\nother: [{a: 1}]", "base= name=x other="),
            ("max-txn-ops: 7\nlog-outputs: [stderr, x]", "log-outputs=stderr,x max-txn-ops=7"),
            ("{\"quota-backend-bytes\": -1}", "quota-backend-bytes=-1"),
            ("watch-progress-notify-interval: 5000000000", "watch-progress-notify-interval=5000000000ns"),
            ("raft-read-timeout: 1", "raft-read-timeout=1ns"),
            (
                "client-transport-security:\n  cert-file: c\n  client-cert-auth: true\n  allowed-hostname: [a, b]\n",
                "cert-file=c client-cert-allowed-hostname=a,b client-cert-auth=true",
            ),
            (
                "peer-transport-security:\n  auto-tls: true\n  allowed-cn: [x]\n  other: 1\n",
                "peer-auto-tls=true peer-cert-allowed-cn=x peer-transport-security.other=1",
            ),
            ("client-transport-security: {allowed-cn: [a, b]}", "client-cert-allowed-cn=a,b"),
            ("socket-options: {reuse-port: true}", "socket-reuse-port=true"),
            (
                "discovery-config:\n  token: t\n  client:\n    endpoints: [h:1, h:2]\n    \
                 dial-timeout: 7\n    secure: {cacert: c, other: 1}\n    auth: {username: u, password: p}\n",
                "discovery-cacert=c discovery-config.client.secure.other=1 discovery-dial-timeout=7ns \
                 discovery-endpoints=h:1,h:2 discovery-password=p discovery-token=t discovery-user=u",
            ),
        ];
        for (text, wanted) in cases {
            let mut found: Vec<String> =
                assignments(text).unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
            found.sort();
            assert_eq!(found.join(" "), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (text, wanted) in [
            ("[a, b]", "not a mapping of keys"),
            ("name: a\nname: b", "duplicate mapping key: name"),
            ("name: a\n---\nname: b", "only single YAML document expected"),
            (": : [", "error unmarshaling"),
            ("discovery-config:\n  auth: {password: s3cret, [", "error unmarshaling"),
            ("name: {a: b}", "name does not accept a mapping"),
            ("peer-transport-security: 7", "peer-transport-security is not a mapping of keys"),
            ("discovery-config: x", "discovery-config is not a mapping of keys"),
        ] {
            let error = assignments(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{error}");
            assert!(error.contains(wanted) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
