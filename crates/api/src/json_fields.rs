//! The fields of messages, for their conversion from and to JSON. The tables are generated from the
//! descriptors of `proto/`.

use std::ops::RangeInclusive;

pub(crate) use tables::of_method;

#[allow(dead_code, reason = "some messages belong to no method")]
mod tables {
    use super::{Integer, JsonFields, Kind, field};
    use crate::Method;

    include!("generated/json_fields.rs");
}

/// Fields of a message, in the order of the protobuf file.
pub(crate) type JsonFields = &'static [JsonField];

pub(crate) struct JsonField {
    pub number: u32,
    /// Name in the protobuf file, and its lowerCamelCase form.
    pub names: [&'static str; 2],
    pub kind: Kind,
    pub is_list: bool,
    /// The `oneof` that contains the field.
    pub one_of: Option<&'static str>,
}

pub(crate) enum Kind {
    Bool,
    String,
    Bytes,
    Integer(Integer),
    Enum(&'static [(&'static str, i32)]),
    // A function, because messages may be recursive.
    Message(fn() -> JsonFields),
    /// A map with entries of these fields: a string and a message.
    Map(fn() -> JsonFields),
}

#[derive(Clone, Copy)]
pub(crate) enum Integer {
    Int64,
    Uint32,
    Uint64,
}

impl Integer {
    pub const fn name(self) -> &'static str {
        match self {
            Integer::Int64 => "int64",
            Integer::Uint32 => "uint32",
            Integer::Uint64 => "uint64",
        }
    }

    pub const fn range(self) -> RangeInclusive<i128> {
        match self {
            Integer::Int64 => i64::MIN as i128..=i64::MAX as i128,
            Integer::Uint32 => u32::MIN as i128..=u32::MAX as i128,
            Integer::Uint64 => u64::MIN as i128..=u64::MAX as i128,
        }
    }
}

const fn field(number: u32, names: [&'static str; 2], kind: Kind) -> JsonField {
    JsonField { number, names, kind, is_list: false, one_of: None }
}

impl JsonField {
    const fn list(self) -> JsonField {
        JsonField { is_list: true, ..self }
    }

    const fn one_of(self, name: &'static str) -> JsonField {
        JsonField { one_of: Some(name), ..self }
    }
}
