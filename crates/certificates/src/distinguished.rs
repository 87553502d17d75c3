//! Distinguished names of subjects and issuers, decoded with Go's rules. Use this decoder only:
//! with different rules, a certificate could authenticate as a different user.

use std::borrow::Cow;
use std::fmt;

use x509_parser::asn1_rs::Oid;
use x509_parser::objects::{oid_registry, oid2abbrev};

use super::der::DerValue;

const COMMON_NAME: [u8; 3] = [0x55, 4, 3];

#[derive(Debug)]
pub struct Name<'a> {
    /// DER encoding, used for comparison.
    pub raw: &'a [u8],
    /// Attribute types and values, without the grouping into sets.
    attributes: Vec<(&'a [u8], String)>,
}

impl<'a> Name<'a> {
    /// Decodes a name. Returns None if it is malformed. Data after the value of an attribute is
    /// ignored, as in Go.
    pub fn read(name: &DerValue<'a>) -> Option<Name<'a>> {
        let mut attributes = Vec::new();
        for set in name.inside(0x30)? {
            for attribute in set.inside(0x31)? {
                let [kind, value, ..] = attribute.inside(0x30)?[..] else { return None };
                let is_kind = kind.tag == 6 && is_object_id(kind.content);
                attributes.push(is_kind.then_some((kind.content, text(&value)?))?);
            }
        }
        Some(Name { raw: name.whole, attributes })
    }

    /// Returns the last common name.
    pub fn common_name(&self) -> &str {
        let last = self.attributes.iter().rfind(|(kind, _)| *kind == COMMON_NAME);
        last.map_or("", |(_, text)| text)
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, text)) in self.attributes.iter().enumerate() {
            let kind = Oid::new(Cow::Borrowed(*kind));
            let short = oid2abbrev(&kind, oid_registry()).map_or_else(|_| kind.to_id_string(), str::to_owned);
            write!(formatter, "{}{short}={text}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Reports whether an object identifier is well formed: each arc complete, minimally encoded and
/// below 2^31.
fn is_object_id(bytes: &[u8]) -> bool {
    let is_number = |bytes: &[u8]| {
        let number = bytes.iter().fold(0_u64, |number, byte| (number << 7) | u64::from(byte & 0x7f));
        bytes.len() <= 5 && bytes[0] != 0x80 && number >> 31 == 0
    };
    bytes.last().is_some_and(|last| *last < 0x80) && bytes.split_inclusive(|byte| *byte < 0x80).all(is_number)
}

/// Decodes a string of a type that Go supports.
fn text(value: &DerValue<'_>) -> Option<String> {
    let bytes = value.content;
    let ascii = |is_good: fn(u8) -> bool| {
        let is_good = bytes.iter().all(|byte| byte.is_ascii() && is_good(*byte));
        is_good.then(|| bytes.iter().copied().map(char::from).collect())
    };
    match value.tag {
        // UTF8String, NumericString, PrintableString, T61String as Latin-1, IA5String, BMPString.
        12 => String::from_utf8(bytes.to_vec()).ok(),
        18 => ascii(|byte| byte.is_ascii_digit() || byte == b' '),
        19 => ascii(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)),
        20 => Some(bytes.iter().copied().map(char::from).collect()),
        22 => ascii(|_| true),
        30 => basic_plane(bytes.strip_suffix(&[0, 0]).unwrap_or(bytes)),
        _ => None,
    }
}

/// Decodes UCS-2. Rejects surrogates and noncharacters.
fn basic_plane(bytes: &[u8]) -> Option<String> {
    let (pairs, []) = bytes.as_chunks::<2>() else { return None };
    let character = |pair: &[u8; 2]| {
        let point = u16::from_be_bytes(*pair);
        let is_none = matches!(point, 0xfdd0..=0xfdef | 0xfffe..);
        char::from_u32(u32::from(point)).filter(|_| !is_none)
    };
    pairs.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::super::der::wrapped;
    use super::*;

    fn attribute(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        wrapped(0x30, &[wrapped(6, kind), wrapped(tag, text)].concat())
    }

    fn common_name(sets: &[Vec<u8>]) -> Option<String> {
        let sets: Vec<u8> = sets.iter().flat_map(|set| wrapped(0x31, set)).collect();
        let der = wrapped(0x30, &sets);
        Some(Name::read(&DerValue::first(&der).unwrap())?.common_name().to_owned())
    }

    #[test]
    fn strings_of_names_are_read_as_by_go() {
        let cases: [(u8, &[u8], Option<&str>); 47] = [
            (12, b"root", Some("root")),
            (12, b"", Some("")),
            (12, b"root\0", Some("root\0")),
            (12, b"svc_a@x", Some("svc_a@x")),
            (12, "r\u{f6}t\u{1f600}".as_bytes(), Some("r\u{f6}t\u{1f600}")),
            (12, b"ro\xffot", None),
            (12, b"\xed\xa0\x80", None),
            (12, b"\xc0\x80", None),
            (18, b"12 3", Some("12 3")),
            (18, b"", Some("")),
            (18, b"root", None),
            (18, b"1-2", None),
            (19, b"root", Some("root")),
            (19, b"aZ09 '()+,-./:=?*&", Some("aZ09 '()+,-./:=?*&")),
            (19, b"svc_a", None),
            (19, b"svc@a", None),
            (19, b"a!", None),
            (19, b"a#", None),
            (19, b"a;", None),
            (19, b"a\0", None),
            (19, b"r\xc3\xb6t", None),
            (20, b"root", Some("root")),
            (20, b"svc_a", Some("svc_a")),
            (20, b"us\xe9r", Some("us\u{e9}r")),
            (20, b"us\xc3\xa9r", Some("us\u{c3}\u{a9}r")),
            (20, b"\0\x80\xff", Some("\0\u{80}\u{ff}")),
            (22, b"root", Some("root")),
            (22, b"a_@\0\x7f", Some("a_@\0\x7f")),
            (22, b"ro\xc3\xa9t", None),
            (22, b"\x80", None),
            (30, b"\0r\0o\0o\0t", Some("root")),
            (30, b"\0r\0o\0\0", Some("ro")),
            (30, b"\0r\0\0\0\0", Some("r\0")),
            (30, b"\0\0", Some("")),
            (30, b"", Some("")),
            (30, b"\x20\xac", Some("\u{20ac}")),
            (30, b"abc", None),
            (30, b"\xd8\x3d\xde\0", None),
            (30, b"\xdc\0", None),
            (30, b"\xff\xfe", None),
            (30, b"\xff\xff", None),
            (30, b"\xfd\xd0", None),
            (30, b"\xfd\xef", None),
            (30, b"\xfd\xf0", Some("\u{fdf0}")),
            (4, b"root", None),
            (26, b"root", None),
            (0x2c, b"\x0c\x04root", None),
        ];
        for (tag, bytes, wanted) in cases {
            let found = common_name(&[attribute(&COMMON_NAME, tag, bytes)]);
            assert_eq!(found.as_deref(), wanted, "{tag} {}", bytes.escape_ascii());
            // A malformed attribute of any type invalidates the name.
            let other =
                common_name(&[attribute(&[0x55, 4, 10], tag, bytes), attribute(&COMMON_NAME, 12, b"root")]);
            assert_eq!(other.as_deref(), wanted.map(|_| "root"), "{tag} {}", bytes.escape_ascii());
        }
        for tag in (0..=255).filter(|tag| ![12, 18, 19, 20, 22, 30].contains(tag) && tag & 0x1f != 0x1f) {
            assert_eq!(common_name(&[attribute(&COMMON_NAME, tag, b"")]), None, "{tag}");
        }
    }

    #[test]
    fn the_last_common_name_of_a_name_counts() {
        let [one, root] = [b"one", b"root".as_slice()].map(|text| attribute(&COMMON_NAME, 12, text));
        let [t61, bmp] = [(20, b"t61".as_slice()), (30, b"\0b\0m\0p")]
            .map(|(tag, text)| attribute(&COMMON_NAME, tag, text));
        let empty = attribute(&COMMON_NAME, 12, b"");
        let more = wrapped(0x30, &[wrapped(6, &COMMON_NAME), wrapped(12, b"root"), wrapped(5, b"")].concat());
        let kind = |id: &[u8]| attribute(id, 12, b"x");
        for (sets, wanted) in [
            (vec![], Some("")),
            (vec![vec![]], Some("")),
            (vec![one.clone(), root.clone()], Some("root")),
            (vec![[one.clone(), root.clone()].concat()], Some("root")),
            (vec![[root.clone(), one.clone()].concat()], Some("one")),
            (vec![root.clone(), t61], Some("t61")),
            (vec![root.clone(), bmp], Some("bmp")),
            (vec![root.clone(), empty], Some("")),
            (vec![vec![], root.clone()], Some("root")),
            (vec![one.clone(), vec![], root.clone(), vec![]], Some("root")),
            (vec![more], Some("root")),
            (vec![root.clone(), kind(&[0x2a, 0x8f, 0xff, 0xff, 0xff, 0x7f])], None),
            (vec![root.clone(), kind(&[0x2a, 0x87, 0xff, 0xff, 0xff, 0x7f])], Some("root")),
            (vec![root.clone(), kind(&[0x55, 0x80, 4])], None),
            (vec![root.clone(), kind(&[0x55, 0x84])], None),
            (vec![root.clone(), kind(&[])], None),
            (vec![root.clone(), wrapped(0x30, &wrapped(6, &COMMON_NAME))], None),
            (vec![root.clone(), wrapped(0x31, &[])], None),
            (vec![root.clone(), wrapped(12, b"root")], None),
        ] {
            assert_eq!(common_name(&sets).as_deref(), wanted, "{sets:x?}");
        }
        let in_sequence = wrapped(0x30, &wrapped(0x30, &one));
        assert!(Name::read(&DerValue::first(&in_sequence).unwrap()).is_none());
    }
}
