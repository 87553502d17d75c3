//! Messages in protobuf's JSON form, as etcd's gateway speaks it.
//!
//! * In: names of the protobuf files or their lowerCamel forms, 64-bit numbers as strings or numbers, bytes
//!   in either base64 alphabet. Unknown fields are ignored.
//! * Out: names of the protobuf files, 64-bit numbers as strings, bytes in padded base64. Fields at their
//!   default are left out.
//!
//! The conversions are generated from the descriptors of `proto/`, as the stubs are.

use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Method;

/// How the messages of one method are read from JSON and written to it.
#[derive(Clone, Copy)]
pub struct JsonForm {
    request: fn(&[u8]) -> Result<Vec<u8>, JsonError>,
    response: fn(Bytes) -> Result<Vec<u8>, JsonError>,
}

/// A message that has no other form.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// What a client sent.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// What the services answered.
    #[error("decode a message")]
    Decode(#[from] prost::DecodeError),
}

impl JsonForm {
    /// That of `method`.
    pub fn of_method(method: Method) -> JsonForm {
        include!(concat!(env!("OUT_DIR"), "/json_forms.rs"))
    }

    fn of<Q, R>() -> JsonForm
    where
        Q: Message + DeserializeOwned,
        R: Message + Default + Serialize,
    {
        JsonForm {
            request: |json| Ok(serde_json::from_slice::<Q>(json)?.encode_to_vec()),
            response: |message| Ok(serde_json::to_vec(&R::decode(message)?)?),
        }
    }

    /// Encodes the request that `json`, one object, stands for. Recursion is bounded by serde_json, to 128
    /// objects and arrays inside one another.
    pub fn request(&self, json: &[u8]) -> Result<Vec<u8>, JsonError> {
        (self.request)(json)
    }

    /// The JSON of an encoded response.
    pub fn response(&self, message: Bytes) -> Result<Vec<u8>, JsonError> {
        (self.response)(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_in_every_form_that_etcd_reads() {
        use crate::etcdserverpb::{RangeRequest, WatchRequest};
        let range = |json: &str| {
            let message = JsonForm::of_method(Method::KvRange).request(json.as_bytes())?;
            Ok::<_, JsonError>(RangeRequest::decode(&message[..]).unwrap())
        };
        let key = |key: &'static [u8]| RangeRequest { key: key.into(), ..RangeRequest::default() };
        for (json, wanted) in [
            ("{}", key(b"")),
            (r#"{"key":"Zm9v"}"#, key(b"foo")),
            (r#"{"key":"_-8="}"#, key(b"\xff\xef")),
            (r#"{"key":"/+8"}"#, key(b"\xff\xef")),
            (r#"{"key":"YQ==","nothing":{"a":[1]}}"#, key(b"a")),
            (r#"{"key":"YQ","limit":"5"}"#, RangeRequest { limit: 5, ..key(b"a") }),
            (r#"{"key":"YQ","limit":5}"#, RangeRequest { limit: 5, ..key(b"a") }),
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
            r#"{"sort_order":"NOTHING"}"#,
            r#"{"sort_order":7}"#,
            r#"{"keys_only":"true"}"#,
            r#"{"limit":"9223372036854775808"}"#,
        ] {
            assert!(range(json).is_err(), "{json}");
        }
        let watch =
            JsonForm::of_method(Method::Watch).request(br#"{"create_request":{"key":"YQ"}}"#).unwrap();
        assert!(WatchRequest::decode(&watch[..]).unwrap().request_union.is_some());
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
}
