//! Texts of servers, made safe for a terminal.
//!
//! Names of keys and clients are chosen by others. A character that moves the cursor, changes colors,
//! reverses the direction of text or has no width is shown as its number, so that a name can neither act on
//! the terminal nor look like another one. Lists and texts are cut to the limits that a member keeps itself.

use crate::status::Document;

/// Characters of a text, before control characters are replaced.
pub const TEXT_MAX: usize = 128;
/// Members, and alarms.
const MEMBERS_MAX: usize = 64;
/// Methods of etcd's API are fewer.
const METHODS_MAX: usize = 128;
/// Buckets of a latency are fewer.
const BUCKETS_MAX: usize = 256;
/// `--metrics-top` is at most 100.
const NAMES_MAX: usize = 100;

/// Whether a character is shown as it is.
fn is_plain(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !character.is_control() && !is_format
}

/// At most [`TEXT_MAX`] characters, each visible.
pub fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(4 * TEXT_MAX));
    for character in text.chars().take(TEXT_MAX) {
        if is_plain(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    shown
}

/// A figure that may be added and compared.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// The document with its limits kept and its texts safe.
pub fn cleaned(mut document: Document) -> Document {
    let texts = [
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
    fn characters_that_act_on_a_terminal_are_shown_as_numbers() {
        for (text, wanted) in [
            ("app/web/", "app/web/"),
            ("ключ/鍵/é", "ключ/鍵/é"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("a\r\nb\tc", "a\\u{d}\\u{a}b\\u{9}c"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("user\u{202e}txt", "user\\u{202e}txt"),
            ("zero\u{200b}width\u{feff}", "zero\\u{200b}width\\u{feff}"),
            ("\u{7f}", "\\u{7f}"),
            ("", ""),
        ] {
            assert_eq!(clean(text), wanted, "{text:?}");
        }
        assert_eq!(clean(&"x".repeat(1 << 20)).len(), TEXT_MAX);
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
