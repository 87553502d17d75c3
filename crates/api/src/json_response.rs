//! Conversion of an encoded message to JSON, like Go's protojson with the names of the protobuf files.
//!
//! * Fields have the order of the protobuf file. Those with default values are omitted.
//! * 64-bit integers are strings, bytes padded base64. An enum is its name, or its number if it has no name.
//!
//! This program encodes a singular field once: of several values, the last is written, and messages are not
//! merged.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};

use crate::json_fields::{Integer, JsonField, JsonFields, Kind};

/// Maximum nesting of messages, the same as prost's.
const DEPTH_MAX: usize = 100;

/// A message that is not a valid encoding.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMessage(String);

impl From<DecodeError> for InvalidMessage {
    fn from(error: DecodeError) -> InvalidMessage {
        InvalidMessage(error.to_string())
    }
}

/// Appends the JSON of an encoded message with these fields.
pub(crate) fn write_message(
    fields: JsonFields,
    message: &[u8],
    json: &mut Vec<u8>,
) -> Result<(), InvalidMessage> {
    Writer { json, depth: 0 }.object(fields, message)
}

/// An encoded value.
#[derive(Clone, Copy)]
enum Encoded<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

impl<'a> Encoded<'a> {
    /// Returns the value of a varint. `decode` has checked that it is one.
    fn number(self) -> u64 {
        match self {
            Encoded::Varint(value) => value,
            Encoded::Bytes(_) => 0,
        }
    }

    /// Returns the bytes of a string, of bytes or of a message. `decode` has checked that it is one.
    fn bytes(self) -> &'a [u8] {
        match self {
            Encoded::Varint(_) => &[],
            Encoded::Bytes(bytes) => bytes,
        }
    }
}

struct Writer<'a> {
    json: &'a mut Vec<u8>,
    depth: usize,
}

impl Writer<'_> {
    fn object(&mut self, fields: JsonFields, message: &[u8]) -> Result<(), InvalidMessage> {
        if self.depth == DEPTH_MAX {
            return Err(InvalidMessage("messages are nested too deeply".to_owned()));
        }
        self.depth += 1;
        let mut values = decode(fields, message)?;
        // A stable sort: lists keep their order.
        values.sort_by_key(|(position, _)| *position);
        self.json.push(b'{');
        let mut is_first = true;
        for values in values.chunk_by(|(a, _), (b, _)| a == b) {
            let (position, last) = values[values.len() - 1];
            let field = &fields[position];
            if !is_written(field, last) {
                continue;
            }
            self.separate(&mut is_first);
            self.string(field.names[0]);
            self.json.push(b':');
            match field.kind {
                Kind::Map(entry) => self.map(entry(), values)?,
                _ if field.is_list => self.list(field, values)?,
                _ => self.value(field, last)?,
            }
        }
        self.json.push(b'}');
        self.depth -= 1;
        Ok(())
    }

    fn list(&mut self, field: &JsonField, values: &[(usize, Encoded<'_>)]) -> Result<(), InvalidMessage> {
        self.json.push(b'[');
        let mut is_first = true;
        for (_, value) in values {
            self.separate(&mut is_first);
            self.value(field, *value)?;
        }
        self.json.push(b']');
        Ok(())
    }

    /// Writes a map. The fields of its entries are the key and the value; an absent one is empty.
    fn map(&mut self, fields: JsonFields, entries: &[(usize, Encoded<'_>)]) -> Result<(), InvalidMessage> {
        self.json.push(b'{');
        let mut is_first = true;
        for (_, entry) in entries {
            self.separate(&mut is_first);
            let parts = decode(fields, entry.bytes())?;
            for (position, field) in fields.iter().enumerate() {
                if position > 0 {
                    self.json.push(b':');
                }
                let part = parts.iter().rfind(|(found, _)| *found == position);
                self.value(field, part.map_or(Encoded::Bytes(&[]), |(_, part)| *part))?;
            }
        }
        self.json.push(b'}');
        Ok(())
    }

    fn value(&mut self, field: &JsonField, value: Encoded<'_>) -> Result<(), InvalidMessage> {
        match field.kind {
            Kind::Bool => self.raw(if value.number() == 0 { "false" } else { "true" }),
            Kind::Integer(kind) => match kind {
                Integer::Int64 => self.string(&(value.number() as i64).to_string()),
                Integer::Uint32 => self.raw(&(value.number() as u32).to_string()),
                Integer::Uint64 => self.string(&value.number().to_string()),
            },
            Kind::Enum(names) => {
                let number = value.number() as i32;
                match names.iter().find(|(_, named)| *named == number) {
                    Some((name, _)) => self.string(name),
                    None => self.raw(&number.to_string()),
                }
            }
            Kind::String => self.string(&String::from_utf8_lossy(value.bytes())),
            Kind::Bytes => {
                self.json.push(b'"');
                self.raw(&STANDARD.encode(value.bytes()));
                self.json.push(b'"');
            }
            Kind::Message(fields) | Kind::Map(fields) => self.object(fields(), value.bytes())?,
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        serde_json::to_writer(&mut *self.json, text).expect("a string in memory is always JSON");
    }

    fn raw(&mut self, text: &str) {
        self.json.extend_from_slice(text.as_bytes());
    }

    fn separate(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.json.push(b',');
        }
    }
}

/// Reports whether the last value of a field is written: lists, messages, members of a `oneof`, and values
/// other than the default.
fn is_written(field: &JsonField, last: Encoded<'_>) -> bool {
    field.is_list
        || field.one_of.is_some()
        || matches!(field.kind, Kind::Message(_) | Kind::Map(_))
        || last.number() != 0
        || !last.bytes().is_empty()
}

/// Returns the values of known fields, each with the position of its field.
fn decode<'a>(fields: JsonFields, message: &'a [u8]) -> Result<Vec<(usize, Encoded<'a>)>, DecodeError> {
    let (mut rest, mut values) = (message, Vec::new());
    while !rest.is_empty() {
        let (number, wire_type) = decode_key(&mut rest)?;
        let Some(position) = fields.iter().position(|field| field.number == number) else {
            skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
            continue;
        };
        let field = &fields[position];
        let is_varint = matches!(field.kind, Kind::Bool | Kind::Integer(_) | Kind::Enum(_));
        let is_packed = is_varint && field.is_list && wire_type == WireType::LengthDelimited;
        if is_varint && !is_packed {
            check_wire_type(WireType::Varint, wire_type)?;
            values.push((position, Encoded::Varint(decode_varint(&mut rest)?)));
            continue;
        }
        check_wire_type(WireType::LengthDelimited, wire_type)?;
        let mut after = rest;
        skip_field(wire_type, number, &mut after, DecodeContext::default())?;
        let length = decode_varint(&mut rest)? as usize;
        let mut bytes = &rest[..length];
        rest = after;
        if is_packed {
            while !bytes.is_empty() {
                values.push((position, Encoded::Varint(decode_varint(&mut bytes)?)));
            }
        } else {
            values.push((position, Encoded::Bytes(bytes)));
        }
    }
    Ok(values)
}
