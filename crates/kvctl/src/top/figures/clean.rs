//! Sanitizes texts of servers for a terminal.
//!
//! Names of keys and clients are untrusted. Lists and texts are truncated to the limits that members enforce.

use process::visible::visible;
use telemetry::status::Document;

/// Maximum characters of a text, before control characters are replaced.
pub const TEXT_MAX: usize = 128;
/// Maximum number of members, and of alarms.
const MEMBERS_MAX: usize = 64;
/// Maximum number of methods; etcd's API has fewer.
const METHODS_MAX: usize = 128;
/// Maximum number of latency buckets; histograms have fewer.
const BUCKETS_MAX: usize = 256;
/// Maximum number of top clients and prefixes: the limit of `--metrics-top`.
const NAMES_MAX: usize = 100;

/// Truncates a text to [`TEXT_MAX`] characters, and makes all of them visible.
pub fn clean(text: &str) -> String {
    let end = text.char_indices().nth(TEXT_MAX).map_or(text.len(), |(end, _)| end);
    visible(&text[..end])
}

/// Replaces values that cannot be added and compared.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// Returns the document with its limits enforced and its texts sanitized.
pub fn cleaned(mut document: Document) -> Document {
    let texts = [
        &mut document.health.text,
        &mut document.version,
        &mut document.etcd_version,
        &mut document.name,
        &mut document.id,
        &mut document.cluster,
        &mut document.leader,
        &mut document.role,
    ];
    texts.into_iter().for_each(|text| *text = clean(text));
    document.members.truncate(MEMBERS_MAX);
    for member in &mut document.members {
        (member.id, member.name) = (clean(&member.id), clean(&member.name));
    }
    document.alarms.truncate(MEMBERS_MAX);
    for alarm in &mut document.alarms {
        (alarm.member, alarm.alarm) = (clean(&alarm.member), clean(&alarm.alarm));
    }
    document.calls.truncate(METHODS_MAX);
    for call in &mut document.calls {
        call.method = clean(&call.method);
        call.latency.truncate(BUCKETS_MAX);
    }
    document.counters.cpu_seconds = finite(document.counters.cpu_seconds);
    if let Some(top) = &mut document.top {
        for rows in [&mut top.clients, &mut top.prefixes] {
            rows.truncate(NAMES_MAX);
            for row in rows {
                row.name = clean(&row.name);
                (row.requests, row.bytes, row.keys) =
                    (finite(row.requests), finite(row.bytes), finite(row.keys));
            }
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_and_visible() {
        assert_eq!(clean("ключ\u{1b}[2J"), "ключ\\u{1b}[2J");
        assert_eq!(clean(&"x".repeat(1 << 20)).len(), TEXT_MAX);
        assert_eq!(clean(&"ж".repeat(1 << 20)).chars().count(), TEXT_MAX);
    }

    #[test]
    fn no_text_of_a_document_keeps_a_control_character() {
        let text = serde_json::json!("\u{1b}[31m");
        let document = serde_json::json!({
            "version": text, "etcd_version": text, "name": text, "id": text, "cluster": text, "leader": text, "role": text,
            "members": vec![serde_json::json!({ "id": text, "name": text }); 100],
            "alarms": vec![serde_json::json!({ "member": text, "alarm": text }); 100],
            "calls": [{ "method": text, "ended": 1, "failed": 0, "latency": vec![[1, 1]; 1000] }],
            "counters": { "cpu_seconds": -1.0 },
            "top": {
                "clients": vec![serde_json::json!({ "name": text, "requests": -1e300, "bytes": 1e308, "keys": 0.0 }); 200],
                "prefixes": [{ "name": text, "requests": 0.0, "bytes": 0.0, "keys": 0.0 }],
            },
        });
        let document = cleaned(serde_json::from_value(document).unwrap());
        let json = serde_json::to_string(&document).unwrap();
        assert!(!json.contains("\\u001b[31m") && json.contains("\\\\u{1b}[31m"), "{json}");
        assert_eq!((document.members.len(), document.alarms.len()), (MEMBERS_MAX, MEMBERS_MAX));
        let top = document.top.unwrap();
        assert_eq!((top.clients.len(), document.calls[0].latency.len()), (NAMES_MAX, BUCKETS_MAX));
        assert_eq!((top.clients[0].requests, document.counters.cpu_seconds), (0.0, 0.0));
    }
}
