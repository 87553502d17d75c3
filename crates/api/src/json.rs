//! Messages in protobuf's JSON form, compatible with etcd's gateway.
//!
//! * Requests: see `json_request`.
//! * Responses: see `json_response`.
//!
//! Both follow the field tables of `json_fields`.

use bytes::Bytes;
use serde::de::DeserializeSeed;

use crate::Method;
use crate::json_fields::{JsonFields, of_method};
use crate::json_request::Object;
use crate::json_response::{InvalidMessage, write_message};

/// JSON conversions of a method's request and response.
#[derive(Clone, Copy)]
pub struct JsonForm {
    request: JsonFields,
    response: JsonFields,
}

/// A message that cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Invalid JSON in a request.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// Invalid protobuf in a response.
    #[error("decode a message: {0}")]
    Decode(#[from] InvalidMessage),
}

impl JsonForm {
    /// Returns the conversions of `method`.
    pub fn of_method(method: Method) -> JsonForm {
        let (request, response) = of_method(method);
        JsonForm { request, response }
    }

    /// Returns the conversions of a client: JSON to responses, requests to JSON.
    pub fn of_client(self) -> JsonForm {
        JsonForm { request: self.response, response: self.request }
    }

    /// Encodes the request given by the JSON object `json`. serde_json limits the nesting to 128 levels.
    pub fn request(&self, json: &[u8]) -> Result<Vec<u8>, JsonError> {
        let mut read = serde_json::Deserializer::from_slice(json);
        let message = Object(self.request).deserialize(&mut read)?;
        read.end()?;
        Ok(message)
    }

    /// Converts an encoded response to JSON.
    pub fn response(&self, message: Bytes) -> Result<Vec<u8>, JsonError> {
        let mut json = Vec::with_capacity(2 * message.len());
        write_message(self.response, &message, &mut json)?;
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

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

    #[test]
    fn messages_in_oneofs_and_maps_are_written() {
        use crate::etcdserverpb::{PutResponse, ResponseOp, TxnResponse, response_op::Response};
        use crate::health::{HealthCheckResponse, HealthListResponse};
        let put = ResponseOp { response: Some(Response::ResponsePut(PutResponse::default())) };
        let response = TxnResponse { responses: vec![put.clone(), put], succeeded: true, header: None };
        let json = JsonForm::of_method(Method::KvTxn).response(response.encode_to_vec().into()).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"{"succeeded":true,"responses":[{"response_put":{}},{"response_put":{}}]}"#
        );
        let statuses = [("\"kv\"".to_owned(), HealthCheckResponse { status: 1 })].into();
        let response = HealthListResponse { statuses }.encode_to_vec().into();
        let json = JsonForm::of_method(Method::HealthList).response(response).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), r#"{"statuses":{"\"kv\"":{"status":"SERVING"}}}"#);
    }

    #[test]
    fn an_encoding_that_ends_early_or_is_nested_too_deeply_is_an_error() {
        let form = JsonForm::of_method(Method::KvTxn);
        // A transaction's response (3) of a transaction (4), and so on.
        let nested = |depth| {
            (0..depth).fold(Vec::new(), |message: Vec<u8>, level| {
                let mut outer = vec![if level % 2 == 0 { 0x22 } else { 0x1a }];
                prost::encoding::encode_varint(message.len() as u64, &mut outer);
                outer.extend(message);
                outer
            })
        };
        assert!(form.response(nested(98).into()).is_ok());
        assert!(form.response(nested(3_000).into()).is_err());
        let response = nested(8);
        for end in 1..response.len() {
            assert!(form.response(Bytes::copy_from_slice(&response[..end])).is_err(), "{end}");
        }
    }

    #[test]
    fn a_request_of_a_client_is_read_as_it_was_written() {
        use crate::etcdserverpb::{
            PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
            request_op::Request, watch_request::RequestUnion,
        };
        let range =
            RangeRequest { key: "a".into(), limit: i64::MIN, sort_order: 2, ..RangeRequest::default() };
        let put = PutRequest { key: b"\xff".to_vec().into(), prev_kv: true, ..PutRequest::default() };
        let ops = [Request::RequestRange(range), Request::RequestPut(put)]
            .map(|request| RequestOp { request: Some(request) });
        let txn = TxnRequest { success: ops.to_vec(), ..TxnRequest::default() }.encode_to_vec();
        let create =
            WatchCreateRequest { filters: vec![1, 0, 7], watch_id: -1, ..WatchCreateRequest::default() };
        let watch = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec();
        for (method, message) in [(Method::KvTxn, txn), (Method::Watch, watch)] {
            let form = JsonForm::of_method(method);
            let json = form.of_client().response(message.clone().into()).unwrap();
            let read = form.request(&json).unwrap();
            // Lists are written packed by prost only.
            let again = form.of_client().response(read.into()).unwrap();
            assert_eq!(String::from_utf8(again), String::from_utf8(json));
        }
    }
}
