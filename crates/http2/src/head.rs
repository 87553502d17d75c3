//! Decoded request heads and trailer sections, and their validation (RFC 9113, sections 8.1 to 8.3).
//!
//! This module checks names and values, pseudo-header fields, connection-specific fields, `te` and
//! `content-length`. Methods, schemes and paths are interpreted by the owner.

use bytes::Bytes;

use crate::hpack::ENTRY_OVERHEAD;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Lower-case name.
    pub name: Bytes,
    pub value: Bytes,
}

/// The head of a request. Requests with equal header blocks share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub method: Bytes,
    /// Absent in CONNECT only.
    pub scheme: Option<Bytes>,
    /// Absent in CONNECT only.
    pub path: Option<Bytes>,
    pub authority: Option<Bytes>,
    /// Fields in the order of the block, without pseudo-header fields.
    pub fields: Vec<Field>,
    pub content_length: Option<u64>,
}

impl Head {
    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.fields.iter().find(|field| field.name == name.as_bytes()).map(|field| &field.value)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Resets the stream with PROTOCOL_ERROR.
    Malformed,
    /// Larger than the limit.
    TooLarge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Head,
    Trailers,
}

/// Collects the fields of one block. Beyond the limit it only counts bytes.
#[derive(Debug)]
pub(crate) struct Collector {
    section: Section,
    bytes: usize,
    bytes_max: usize,
    malformed: bool,
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    path: Option<Bytes>,
    authority: Option<Bytes>,
    fields: Vec<Field>,
    content_length: Option<u64>,
}

impl Collector {
    pub(crate) fn new(section: Section, bytes_max: usize) -> Collector {
        Collector {
            section,
            bytes: 0,
            bytes_max,
            malformed: false,
            method: None,
            scheme: None,
            path: None,
            authority: None,
            fields: Vec::new(),
            content_length: None,
        }
    }

    /// Returns the list size so far, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn field(&mut self, name: Bytes, value: Bytes) {
        self.bytes = self.bytes.saturating_add(name.len() + value.len() + ENTRY_OVERHEAD);
        if self.bytes <= self.bytes_max && !self.malformed && !self.accept(name, value) {
            self.malformed = true;
        }
    }

    /// Adds a field. Returns false if it makes the section malformed.
    fn accept(&mut self, name: Bytes, value: Bytes) -> bool {
        if !valid_value(&value) {
            return false;
        }
        if name.first() == Some(&b':') {
            return self.pseudo(&name, value);
        }
        let fit = valid_name(&name)
            && match &name[..] {
                b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                    false
                }
                b"te" => value.eq_ignore_ascii_case(b"trailers"),
                b"content-length" => self.content_length(&value),
                _ => true,
            };
        if fit {
            self.fields.push(Field { name, value });
        }
        fit
    }

    fn pseudo(&mut self, name: &[u8], value: Bytes) -> bool {
        if has_blank_ends(&value) {
            return false;
        }
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":path" => &mut self.path,
            b":authority" => &mut self.authority,
            _ => return false,
        };
        self.section == Section::Head && self.fields.is_empty() && place.replace(value).is_none()
    }

    /// Parses `content-length`. Repeated values must be equal.
    fn content_length(&mut self, value: &[u8]) -> bool {
        // 18 digits fit into 64 bits, and no body is longer.
        if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
            return false;
        }
        let length = value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0'));
        self.section == Section::Trailers
            || self.content_length.replace(length).is_none_or(|old| old == length)
    }

    fn check(&self) -> Result<(), Unfit> {
        // A list over the limit may be malformed as well, but its later fields were dropped.
        if self.bytes > self.bytes_max {
            return Err(Unfit::TooLarge);
        }
        if self.malformed { Err(Unfit::Malformed) } else { Ok(()) }
    }

    pub(crate) fn head(self) -> Result<Head, Unfit> {
        self.check()?;
        let Collector { method, scheme, path, authority, fields, content_length, .. } = self;
        let method = method.filter(|method| !method.is_empty()).ok_or(Unfit::Malformed)?;
        let complete = match &method[..] {
            b"CONNECT" => scheme.is_none() && path.is_none() && authority.is_some(),
            _ => scheme.is_some() && path.as_ref().is_some_and(|path| !path.is_empty()),
        };
        if !complete {
            return Err(Unfit::Malformed);
        }
        Ok(Head { method, scheme, path, authority, fields, content_length })
    }

    pub(crate) fn trailers(self) -> Result<Vec<Field>, Unfit> {
        self.check()?;
        Ok(self.fields)
    }
}

/// Section 8.2.1: no upper case, no control characters, space, colon or bytes above ASCII, and not empty.
fn valid_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|&byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && byte != b':')
}

/// Section 8.2.1: no NUL, LF or CR.
///
/// The RFC also forbids white space at either end. Like gRPC's Go server this accepts it, since clients
/// pass on metadata from their programs and a call should not fail for a blank. The value is not trimmed.
fn valid_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'))
}

/// Reports whether a value starts or ends with a blank. Checked for fields that name the request, so that a
/// proxy and this server cannot interpret one value differently.
fn has_blank_ends(value: &[u8]) -> bool {
    [value.first(), value.last()].iter().any(|byte| matches!(byte, Some(b' ' | b'\t')))
}
