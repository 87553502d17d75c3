//! Conversion of a JSON request to its encoded message, like Go's protojson with unknown fields
//! discarded.
//!
//! * A field has two names and occurs at most once. `null` is equivalent to an absent field.
//! * A number may be a string and may have a zero fraction. Bytes may use either base64 alphabet,
//!   padded or not. An enum is a name or a number; an unknown name is ignored, an unknown number is
//!   not.
//!
//! Requests have no maps.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json_fields::{JsonField, JsonFields, Kind};

/// Visitor that encodes a message with these fields.
pub(crate) struct Object(pub JsonFields);

impl<'de> DeserializeSeed<'de> for Object {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object {
    type Value = Vec<u8>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<u8>, A::Error> {
        let (mut message, mut seen, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let Some(field) = self.0.iter().find(|field| field.names.contains(&&*name)) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen.contains(&field.number) {
                return Err(A::Error::custom(format!("duplicate field {name:?}")));
            }
            seen.push(field.number);
            let value = Value { field, message: &mut message, is_element: false };
            if map.next_value_seed(value)?
                && let Some(one_of) = field.one_of
            {
                if chosen.contains(&one_of) {
                    return Err(A::Error::custom(format!("{name:?}: its oneof is already set")));
                }
                chosen.push(one_of);
            }
        }
        Ok(message)
    }
}

/// Visitor that appends a field to `message`, and reports whether the field was present.
struct Value<'a> {
    field: &'static JsonField,
    message: &'a mut Vec<u8>,
    is_element: bool,
}

impl Value<'_> {
    fn varint(self, value: i128) -> bool {
        encode_key(self.field.number, WireType::Varint, self.message);
        // Negative integers are encoded as 64-bit two's complement.
        encode_varint(value as u64, self.message);
        true
    }

    fn bytes(self, bytes: &[u8]) -> bool {
        encode_key(self.field.number, WireType::LengthDelimited, self.message);
        encode_varint(bytes.len() as u64, self.message);
        self.message.extend_from_slice(bytes);
        true
    }

    fn refused<E: Error>(&self, value: impl fmt::Display) -> E {
        let kind = match self.field.kind {
            Kind::Bool => "bool",
            Kind::String => "string",
            Kind::Bytes => "bytes",
            Kind::Integer(kind) => kind.name(),
            Kind::Enum(_) => "enum",
            Kind::Message(_) => "message",
            Kind::Map(_) => "map",
        };
        E::custom(format!("invalid value for {kind} field {}: {value}", self.field.names[1]))
    }

    fn integer<E: Error>(self, value: Option<i128>, given: impl fmt::Display) -> Result<bool, E> {
        let fits = |value: &i128| match &self.field.kind {
            Kind::Integer(kind) => kind.range().contains(value),
            Kind::Enum(_) => i32::try_from(*value).is_ok(),
            Kind::Bool | Kind::String | Kind::Bytes | Kind::Message(_) | Kind::Map(_) => false,
        };
        match value.filter(fits) {
            Some(value) if !self.is_list() => Ok(self.varint(value)),
            _ => Err(self.refused(given)),
        }
    }

    /// Reports whether a JSON list is expected.
    fn is_list(&self) -> bool {
        self.field.is_list && !self.is_element
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        match self.field.kind {
            // Parse the digits: the detour through a float could change the number.
            Kind::Integer(_) | Kind::Enum(_) if !self.is_list() => {
                let value = <&RawValue>::deserialize(deserializer)?.get();
                match value.as_bytes()[0] {
                    b'-' | b'0'..=b'9' => self.integer(integer(value), value),
                    _ => serde_json::Deserializer::from_str(value)
                        .deserialize_any(self)
                        .map_err(D::Error::custom),
                }
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a value for {}", self.field.names[1])
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        if self.is_element { Err(self.refused("null")) } else { Ok(false) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        match self.field.kind {
            Kind::Bool if !self.is_list() => Ok(self.varint(value.into())),
            _ => Err(self.refused(value)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        match self.field.kind {
            _ if self.is_list() => Err(self.refused(format!("{text:?}"))),
            Kind::String => Ok(self.bytes(text.as_bytes())),
            Kind::Bytes => match from_base64(text) {
                Some(bytes) => Ok(self.bytes(&bytes)),
                None => Err(self.refused(format!("{text:?}"))),
            },
            Kind::Integer(_) => self.integer(number(text), format!("{text:?}")),
            Kind::Enum(names) => match names.iter().find(|(name, _)| *name == text) {
                Some((_, number)) => Ok(self.varint((*number).into())),
                None => Ok(false),
            },
            Kind::Bool | Kind::Message(_) | Kind::Map(_) => Err(self.refused(format!("{text:?}"))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        match self.field.kind {
            Kind::Message(fields) if !self.is_list() => {
                let message = Object(fields()).visit_map(map)?;
                Ok(self.bytes(&message))
            }
            _ => Err(self.refused("{")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        if !self.is_list() {
            return Err(self.refused("["));
        }
        let Value { field, message, .. } = self;
        while list.next_element_seed(Value { field, message: &mut *message, is_element: true })?.is_some() {}
        Ok(true)
    }
}

/// Parses an integer in a string, in JSON's spelling.
fn number(text: &str) -> Option<i128> {
    let value: &RawValue = serde_json::from_str(text).ok()?;
    // Reject surrounding white space.
    (value.get() == text).then(|| integer(text))?
}

/// Parses a JSON number with an integral value of at most 20 digits.
fn integer(number: &str) -> Option<i128> {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    if whole == "0" && fraction.is_empty() {
        return Some(0);
    }
    let exponent: i32 = exponent.parse().ok()?;
    let places = i64::from(exponent) - i64::try_from(fraction.len()).ok()?;
    let mut digits = format!("{}{fraction}", whole.trim_start_matches('0'));
    if places >= 0 {
        let places = usize::try_from(places).ok().filter(|places| *places <= 20)?;
        digits.push_str(&"0".repeat(places));
    } else {
        let kept = digits.len().checked_sub(usize::try_from(-places).ok()?)?;
        digits.drain(kept..).all(|digit| digit == '0').then_some(())?;
    }
    let value: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some(if number.starts_with('-') { -value } else { value })
}

/// Decodes base64 like Go: padded if the length is a multiple of four. Line breaks and trailing bits
/// are ignored.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
    let padding = match text.len() % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let config =
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true).with_decode_padding_mode(padding);
    let text =
        if text.contains(['\r', '\n']) { Cow::from(text.replace(['\r', '\n'], "")) } else { text.into() };
    GeneralPurpose::new(alphabet, config).decode(&*text).ok()
}
