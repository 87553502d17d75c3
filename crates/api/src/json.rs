//! Messages in protobuf's JSON form, compatible with etcd's gateway.
//!
//! * Requests: see `json_request`.
//! * Responses: field names of the protobuf files, 64-bit integers as strings, bytes in padded base64.
//!   Fields with default values are omitted.
//!
//! Like the stubs, the conversions are generated from the descriptors of `proto/`.

use bytes::Bytes;
use prost::{Message, UnknownEnumValue};
use serde::de::DeserializeSeed;
use serde::{Serialize, Serializer};

use crate::Method;
use crate::json_request::{JsonFields, Object};

/// JSON conversions of a method's request and response.
#[derive(Clone, Copy)]
pub struct JsonForm {
    request: fn() -> JsonFields,
    response: fn(Bytes) -> Result<Vec<u8>, JsonError>,
}

/// A message that cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Invalid JSON in a request.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// Invalid protobuf in a response.
    #[error("decode a message")]
    Decode(#[from] prost::DecodeError),
}

impl JsonForm {
    /// Returns the conversions of `method`.
    pub fn of_method(method: Method) -> JsonForm {
        include!(concat!(env!("OUT_DIR"), "/json_forms.rs"))
    }

    fn of<R: Message + Default + Serialize>(request: fn() -> JsonFields) -> JsonForm {
        JsonForm { request, response: |message| Ok(serde_json::to_vec(&R::decode(message)?)?) }
    }

    /// Encodes the request given by the JSON object `json`. serde_json limits the nesting to 128 levels.
    pub fn request(&self, json: &[u8]) -> Result<Vec<u8>, JsonError> {
        let mut read = serde_json::Deserializer::from_slice(json);
        let message = Object((self.request)()).deserialize(&mut read)?;
        read.end()?;
        Ok(message)
    }

    /// Converts an encoded response to JSON.
    pub fn response(&self, message: Bytes) -> Result<Vec<u8>, JsonError> {
        (self.response)(message)
    }
}

/// An enum, serialized by name, or by number if it has no name, like etcd.
pub(crate) struct ShownEnum<E>(pub Result<E, UnknownEnumValue>);

impl<E: Serialize> Serialize for ShownEnum<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(named) => named.serialize(serializer),
            Err(UnknownEnumValue(number)) => serializer.serialize_i32(*number),
        }
    }
}

#[allow(dead_code, reason = "those of answers are not read")]
mod fields {
    use crate::json_request::{JsonField, JsonFields, Kind};

    include!(concat!(env!("OUT_DIR"), "/json_fields.rs"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_in_every_form_that_etcd_reads() {
        use crate::etcdserverpb::RangeRequest;
        let range = |json: &str| {
            let message = JsonForm::of_method(Method::KvRange).request(json.as_bytes())?;
            Ok::<_, JsonError>(RangeRequest::decode(&message[..]).unwrap())
        };
        let key = |key: &'static [u8]| RangeRequest { key: key.into(), ..RangeRequest::default() };
        for (json, wanted) in [
            ("{}", key(b"")),
            (r#"{"key":null,"limit":null,"sort_order":null,"keys_only":null}"#, key(b"")),
            (r#"{"\u006bey":"YQ\n","limit":5.0}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (r#"{"key":"YR==","limit":"5e0"}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (r#"{"key":"YQ","limit":"-5"}"#, RangeRequest { limit: -5, ..key(b"a") }),
            (r#"{"key":"YQ","sort_order":"descend"}"#, key(b"a")),
            (r#"{"key":"YQ","sort_order":2.0}"#, RangeRequest { sort_order: 2, ..key(b"a") }),
            (r#"{"key":"YQ","sort_order":-7}"#, RangeRequest { sort_order: -7, ..key(b"a") }),
            (r#"{"Key":5,"key":"YQ","nothing":1,"nothing":2}"#, key(b"a")),
            (r#"{"key":"Zm9v"}"#, key(b"foo")),
            (r#"{"key":"_-8="}"#, key(b"\xff\xef")),
            (r#"{"key":"/+8"}"#, key(b"\xff\xef")),
            (r#"{"key":"YQ==","nothing":{"a":[1]}}"#, key(b"a")),
            (r#"{"key":"YQ","limit":"5"}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (r#"{"key":"YQ","limit":5}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (
                r#"{"key":"YQ","limit":9007199254740993.0}"#,
                RangeRequest { limit: 9_007_199_254_740_993, ..key(b"a") },
            ),
            (
                r#"{"key":"YQ","limit":9.223372036854775807e18}"#,
                RangeRequest { limit: i64::MAX, ..key(b"a") },
            ),
            (
                r#"{"key":"YQ","limit":"-922337203685477580800e-2"}"#,
                RangeRequest { limit: i64::MIN, ..key(b"a") },
            ),
            (r#"{"key":"YQ","limit":0.05e2}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (r#"{"key":"YQ","limit":-0.0e-99999}"#, key(b"a")),
            (r#"{"key":"YQ","keysOnly":true}"#, RangeRequest { keys_only: true, ..key(b"a") }),
            (r#"{"key":"YQ","keys_only":true}"#, RangeRequest { keys_only: true, ..key(b"a") }),
            (r#"{"key":"YQ","sort_order":"DESCEND"}"#, RangeRequest { sort_order: 2, ..key(b"a") }),
            (r#"{"key":"YQ","sortTarget":4}"#, RangeRequest { sort_target: 4, ..key(b"a") }),
        ] {
            assert_eq!(range(json).unwrap(), wanted, "{json}");
        }
        for json in [
            "[]",
            "null",
            "5",
            "{",
            r#"{"key":5}"#,
            r#"{"key":"!!"}"#,
            r#"{"key":"YQ","key":"YQ"}"#,
            r#"{"limit":"x"}"#,
            r#"{"limit":1.5}"#,
            r#"{"sort_order":true}"#,
            r#"{"sort_order":2147483648}"#,
            r#"{"key":null,"key":"YQ"}"#,
            r#"{"keys_only":true,"keysOnly":true}"#,
            r#"{"key":"_+8"}"#,
            r#"{"key":"YQ="}"#,
            r#"{"key":[]}"#,
            r#"{"limit":"05"}"#,
            r#"{"limit":"+5"}"#,
            r#"{"limit":" 5"}"#,
            r#"{"limit":1e30}"#,
            r#"{"keys_only":1}"#,
            r#"{"keys_only":"true"}"#,
            r#"{"limit":"9223372036854775808"}"#,
        ] {
            assert!(range(json).is_err(), "{json}");
        }
    }

    #[test]
    fn messages_in_messages_are_read_as_etcd_reads_them() {
        use crate::etcdserverpb::WatchRequest;
        use crate::etcdserverpb::watch_request::RequestUnion;
        let watch = |json: &str| JsonForm::of_method(Method::Watch).request(json.as_bytes());
        for (json, filters) in [
            (r#"{"create_request":{"key":"YQ"}}"#, vec![]),
            (r#"{"cancel_request":null,"create_request":{"filters":null}}"#, vec![]),
            (r#"{"create_request":{"filters":["NODELETE",0,"nothing",1.0]}}"#, vec![1, 0, 1]),
        ] {
            let message = WatchRequest::decode(&watch(json).unwrap()[..]).unwrap();
            let Some(RequestUnion::CreateRequest(create)) = message.request_union else { panic!("{json}") };
            assert_eq!(create.filters, filters, "{json}");
        }
        for json in [
            r#"{"create_request":{},"cancel_request":{}}"#,
            r#"{"create_request":{"filters":[null]}}"#,
            r#"{"create_request":{"filters":0}}"#,
            r#"{"create_request":[]}"#,
            r#"{"create_request":"x"}"#,
        ] {
            assert!(watch(json).is_err(), "{json}");
        }
    }

    #[test]
    fn answers_leave_defaults_out_and_keep_the_names_of_the_protobuf_files() {
        use crate::etcdserverpb::{RangeResponse, ResponseHeader};
        use crate::mvccpb::KeyValue;
        let header = ResponseHeader { cluster_id: u64::MAX, revision: 5, ..ResponseHeader::default() };
        let pair = KeyValue {
            key: "a".into(),
            value: b"\xff\xef".to_vec().into(),
            mod_revision: 4,
            ..KeyValue::default()
        };
        let response = RangeResponse { header: Some(header), kvs: vec![pair], count: 1, more: false };
        let json = JsonForm::of_method(Method::KvRange).response(response.encode_to_vec().into()).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            concat!(
                r#"{"header":{"cluster_id":"18446744073709551615","revision":"5"},"#,
                r#""kvs":[{"key":"YQ==","mod_revision":"4","value":"/+8="}],"count":"1"}"#
            )
        );
    }

    #[test]
    fn a_number_that_its_enum_does_not_name_is_answered_as_a_number() {
        use crate::etcdserverpb::{AlarmMember, AlarmResponse};
        for (alarm, wanted) in
            [(1, r#"{"alarms":[{"alarm":"NOSPACE"}]}"#), (7, r#"{"alarms":[{"alarm":7}]}"#)]
        {
            let alarms = vec![AlarmMember { alarm, ..AlarmMember::default() }];
            let response = AlarmResponse { alarms, header: None }.encode_to_vec().into();
            let json = JsonForm::of_method(Method::MaintenanceAlarm).response(response).unwrap();
            assert_eq!(String::from_utf8(json).unwrap(), wanted);
        }
    }
}
