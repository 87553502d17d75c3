//! Conversion of a run's keys and values to bytes, and back.

use crate::operation::{KeyChange, KeyName, KeyRecord, LEASED};
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use bytes::Bytes;

/// Placeholders for a key or value that no client of the run has written.
const FOREIGN_KEY: u32 = u32::MAX;
const FOREIGN_VALUE: u64 = u64::MAX;

/// Keys below a prefix that only this run uses.
#[derive(Clone, Debug)]
pub struct KeyNames {
    prefix: Bytes,
}

impl KeyNames {
    pub fn new(prefix: String) -> Self {
        Self { prefix: prefix.into() }
    }

    pub fn key(&self, number: u32) -> Bytes {
        [&self.prefix[..], KeyName(number).to_string().as_bytes()].concat().into()
    }

    /// Returns the range of the keys that clients compete for.
    pub fn all(&self) -> (Bytes, Bytes) {
        self.bounds(b"k", b"l")
    }

    /// Returns the range of `all` extended by the keys of leases.
    pub fn watched(&self) -> (Bytes, Bytes) {
        self.bounds(b"k", b"m")
    }

    /// Returns the range of `watched` extended by the keys of locks and elections that were held at the end
    /// of the run.
    pub fn written(&self) -> (Bytes, Bytes) {
        self.bounds(b"k", b"o")
    }

    /// Returns the name of a lock or an election.
    pub fn held(&self, name: &str) -> Bytes {
        [&self.prefix[..], b"n", name.as_bytes()].concat().into()
    }

    fn bounds(&self, first: &[u8], end: &[u8]) -> (Bytes, Bytes) {
        let bound = |last| [&self.prefix[..], last].concat().into();
        (bound(first), bound(end))
    }

    pub fn record(&self, kv: &KeyValue) -> KeyRecord {
        KeyRecord {
            key: self.number(&kv.key),
            value: digits(&kv.value).unwrap_or(FOREIGN_VALUE),
            created: kv.create_revision,
            modified: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        }
    }

    pub fn change(&self, event: &Event) -> KeyChange {
        let kv = event.kv.clone().unwrap_or_default();
        let record = (event.r#type() == EventType::Put).then(|| self.record(&kv));
        KeyChange { revision: kv.mod_revision, key: self.number(&kv.key), record }
    }

    /// Returns the number of a key; that of foreign keys if this run does not write it.
    pub fn number(&self, key: &[u8]) -> u32 {
        let number = |digits_of: &[u8]| u32::try_from(digits(digits_of)?).ok();
        let known = match key.strip_prefix(&self.prefix[..]) {
            Some([b'k', rest @ ..]) => number(rest),
            Some([b'l', rest @ ..]) => number(rest).map(|number| number | LEASED),
            Some(_) | None => None,
        };
        known.unwrap_or(FOREIGN_KEY)
    }
}

pub fn value(number: u64) -> Bytes {
    number.to_string().into()
}

/// Parses the canonical form of a number: `+7` and `07` are other keys and values.
fn digits(text: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_read_back_and_foreign_ones_are_distinguished() {
        let names = KeyNames::new("p/".into());
        let kv = |key: &str, text: &str| KeyValue {
            key: key.to_owned().into(),
            value: text.to_owned().into(),
            create_revision: 3,
            mod_revision: 5,
            version: 2,
            ..Default::default()
        };
        let record = KeyRecord { key: 17, value: 42, created: 3, modified: 5, version: 2, lease: 0 };
        assert_eq!((names.key(17), value(42)), ("p/k17".into(), "42".into()));
        assert_eq!(names.record(&kv("p/k17", "42")), record);
        for (key, text) in [
            ("q/k17", "42"),
            ("p/k17", "x"),
            ("p/17", "42"),
            ("p/k4294967296", "42"),
            ("p/k017", "42"),
            ("p/k+17", "42"),
            ("p/k17", "042"),
            ("p/k17", "+42"),
            ("p/k17", ""),
        ] {
            assert_ne!(names.record(&kv(key, text)), record, "{key} {text}");
        }
        let event =
            |kind: EventType| Event { r#type: kind.into(), kv: Some(kv("p/k17", "42")), prev_kv: None };
        let change = KeyChange { revision: 5, key: 17, record: Some(record) };
        assert_eq!(names.change(&event(EventType::Put)), change);
        assert_eq!(names.change(&event(EventType::Delete)), KeyChange { record: None, ..change });
        let (first, end) = names.all();
        assert!(first < names.key(0) && names.key(LEASED - 1) < end);
        let leased = names.key(LEASED | 17);
        assert_eq!(names.number(&leased), LEASED | 17);
        let held = names.held("lock");
        assert!(names.written().0 == first && leased < held && held < names.written().1);
        assert!(leased >= end && leased < names.watched().1 && names.watched().0 == first);
    }
}
