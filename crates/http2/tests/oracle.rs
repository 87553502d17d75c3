//! The client of the `h2` crate against the driver: requests arrive unchanged and are echoed, for any read
//! boundaries.

use std::future::pending;

use crate::echo::{Echo, Requests};
use crate::harness::{Deadlines, serve};
use bytes::Bytes;
use http2::Limits;
use proptest::prelude::*;

/// A request, and how it is sent.
#[derive(Clone, Debug)]
struct Call {
    method: String,
    path: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    /// Size of the DATA frames requested from the client.
    piece: usize,
    trailers: Vec<(String, String)>,
}

fn any_fields() -> impl Strategy<Value = Vec<(String, String)>> {
    // Few names, so that the dynamic table is used; some values that Huffman coding makes longer.
    let field = ("x-[a-c]{1,2}", prop_oneof!["[a-b]{0,3}", "[!-~]{1,40}", "[\u{80}-\u{ff}]{1,10}"]);
    proptest::collection::vec(field, 0..8)
}

fn any_call() -> impl Strategy<Value = Call> {
    let body = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..100),
        1 => (0usize..100_000).prop_map(|length| (0..length).map(|at| at as u8).collect()),
    ];
    let trailers = prop_oneof![3 => Just(Vec::new()), 1 => any_fields()];
    ("(GET|POST|X)", "/[a-z]{0,5}", any_fields(), body, 1usize..40_000, trailers).prop_map(
        |(method, path, fields, body, piece, trailers)| Call { method, path, fields, body, piece, trailers },
    )
}

fn header_map(fields: &[(String, String)]) -> http::HeaderMap {
    let mut map = http::HeaderMap::new();
    for (name, value) in fields {
        let name: http::HeaderName = name.parse().unwrap();
        map.append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    map
}

/// Sends a call and checks what comes back.
async fn run(mut client: h2::client::SendRequest<Bytes>, id: usize, call: Call) {
    let mut request = http::Request::new(());
    *request.method_mut() = call.method.parse().unwrap();
    *request.uri_mut() = format!("http://host{}", call.path).parse().unwrap();
    *request.headers_mut() = header_map(&call.fields);
    request.headers_mut().insert("id", id.into());
    client = client.ready().await.unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    let sending = async {
        // h2 closes connections that send it many small frames, as the echo of small ones does.
        for piece in call.body.chunks(call.piece.max(call.body.len() / 20)) {
            stream.send_data(Bytes::copy_from_slice(piece), false).unwrap();
        }
        if call.trailers.is_empty() {
            stream.send_data(Bytes::new(), true).unwrap();
        } else {
            stream.send_trailers(header_map(&call.trailers)).unwrap();
        }
    };
    sending.await;
    let (head, mut body) = response.await.unwrap().into_parts();
    assert_eq!((head.status.as_u16(), &head.headers["kind"]), (200, &"echo".parse().unwrap()));
    let mut received = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.unwrap();
        body.flow_control().release_capacity(bytes.len()).unwrap();
        received.extend_from_slice(&bytes);
    }
    assert_eq!(received, call.body);
    assert_eq!(body.trailers().await.unwrap().unwrap()["status"], "done");
}

/// Compares the call with the request seen by the server.
fn check(requests: &Requests, id: usize, call: &Call) {
    let requests = requests.lock().unwrap();
    let (head, trailers) = &requests[&id.to_string()];
    assert_eq!(head.method, call.method.as_bytes());
    assert_eq!(head.path.as_deref(), Some(call.path.as_bytes()));
    assert_eq!(head.authority.as_deref(), Some(&b"host"[..]));
    let sorted = |fields: &[http2::Field]| {
        let mut fields: Vec<_> = fields.iter().map(|f| (f.name.to_vec(), f.value.to_vec())).collect();
        fields.sort();
        fields
    };
    let expected = |fields: &[(String, String)], id: Option<usize>| {
        let fields =
            fields.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
        let id = id.map(|id| (b"id".to_vec(), id.to_string().into_bytes()));
        let mut fields: Vec<_> = fields.chain(id).collect();
        fields.sort();
        fields
    };
    assert_eq!(sorted(&head.fields), expected(&call.fields, Some(id)));
    assert_eq!(sorted(trailers.as_deref().unwrap_or_default()), expected(&call.trailers, None));
}

/// Runs all calls concurrently over one connection with pipes of `cut` bytes.
async fn exchange(calls: &[Call], cut: usize, limits: Limits) {
    let (near, far) = tokio::io::duplex(cut);
    let requests = Requests::default();
    let server =
        tokio::spawn(serve(far, Echo::new(requests.clone()), limits, Deadlines::default(), pending()));
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    let driven = tokio::spawn(connection);
    // The first call runs separately, since its client does not know the stream limit yet.
    run(client.clone(), 0, calls[0].clone()).await;
    let running: Vec<_> = calls
        .iter()
        .enumerate()
        .skip(1)
        .map(|(id, call)| tokio::spawn(run(client.clone(), id, call.clone())))
        .collect();
    for call in running {
        call.await.unwrap();
    }
    drop(client);
    driven.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
    for (id, call) in calls.iter().enumerate() {
        check(&requests, id, call);
    }
}

/// Large enough to avoid tiny frames: h2 closes connections that send many of them.
fn any_limits() -> impl Strategy<Value = Limits> {
    (1u32..20, 1000usize..4000, 1usize..40_000, 0u32..5000, 1000u32..100_000).prop_map(
        |(
            streams_max,
            stream_unsent_bytes_max,
            output_bytes_max,
            header_table_bytes_max,
            stream_window_bytes,
        )| Limits {
            streams_max,
            stream_unsent_bytes_max,
            connection_unsent_bytes_max: 4 * stream_unsent_bytes_max,
            output_bytes_max,
            header_table_bytes_max,
            stream_window_bytes,
            ..Limits::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_of_h2_arrive_as_they_were_sent_and_come_back(
        calls in proptest::collection::vec(any_call(), 1..12),
        cut in prop_oneof![1usize..40, 40usize..70_000],
        limits in any_limits(),
    ) {
        // Pieces of a few bytes take long for large bodies.
        let cut = if calls.iter().any(|call| call.body.len() > 100) { cut.max(2000) } else { cut };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(exchange(&calls, cut, limits));
    }
}
