//! Any bytes as the JSON of a gateway's request, and as an answer that is to be written as JSON.
//!
//! Laws: no panic; a request is little longer than its JSON; what is written as JSON is read as the same
//! message; an answer that has a JSON form is JSON.

#![no_main]

use api::etcdserverpb::{
    AuthRoleGrantPermissionRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, TxnRequest, WatchRequest,
};
use api::{JsonForm, Method};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|input: &[u8]| {
    let Some((method, bytes)) = input.split_first() else { return };
    let method = Method::ALL[usize::from(*method) % Method::ALL.len()];
    let form = JsonForm::of_method(method);
    if let Ok(json) = form.response(Bytes::copy_from_slice(bytes)) {
        serde_json::from_slice::<serde_json::Value>(&json).expect("an answer is JSON");
    }
    let Ok(message) = form.request(bytes) else { return };
    // A number of two digits may take eleven bytes.
    assert!(message.len() <= 16 + 8 * bytes.len(), "{} bytes of {}", message.len(), bytes.len());
    match method {
        Method::KvRange => same::<RangeRequest>(form, &message),
        Method::KvPut => same::<PutRequest>(form, &message),
        Method::KvTxn => same::<TxnRequest>(form, &message),
        Method::Watch => same::<WatchRequest>(form, &message),
        Method::LeaseKeepAlive => same::<LeaseKeepAliveRequest>(form, &message),
        Method::AuthRoleGrantPermission => same::<AuthRoleGrantPermissionRequest>(form, &message),
        _ => {}
    }
});

/// The JSON of a message stands for the message.
fn same<Q: Message + Default + PartialEq>(form: JsonForm, message: &[u8]) {
    let decoded = Q::decode(message).expect("what was encoded");
    let json = form.of_client().response(Bytes::copy_from_slice(message)).expect("what was encoded");
    let again = form.request(&json).expect("what was written is read");
    // A default that was given is written out in one of them.
    assert!(Q::decode(&*again).is_ok_and(|again| again == decoded), "{}", String::from_utf8_lossy(&json));
}
