//! gRPC over HTTP/2: message prefix, headers, trailers, and sending a message at its client's pace.
//!
//! The memory of a response is accounted for until it is sent, and a client that reads a little now and
//! then would hold it indefinitely. So each response has a send deadline based on its size, which is
//! shorter while memory for unsent responses is low.

use std::future::poll_fn;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::http2::{EndOfBody, ErrorCode, HeaderBlock, StreamEnded};
use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use prost::Message;
use tokio::time::{Instant, timeout};
use tonic::Status;

use super::account::{Account, LOOK_AGAIN, counted};
use super::wire::{StreamWriter, response_block, trailers_block};

pub(super) use api::grpc::{PREFIX_BYTES, Prefix};

/// The field with the timeout of a call. Clients send the remaining time, so it differs from call to call.
pub(super) const TIMEOUT: &str = "grpc-timeout";

/// Reports whether these are the headers of a gRPC call.
pub fn is_call(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    matches!(content_type.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

pub(super) static HEADERS: LazyLock<HeaderBlock> =
    LazyLock::new(|| HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]));

/// The trailers of a successful call.
pub(super) static TRAILERS: LazyLock<HeaderBlock> =
    LazyLock::new(|| HeaderBlock::new([("grpc-status", "0")]));

/// gRPC's frame: not compressed, the length in four bytes, the message.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let bytes = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_slice(&frame_prefix(bytes)?);
    message.encode(&mut frame).expect("the buffer was made for this message");
    Ok(frame.freeze())
}

/// The frame's first five bytes, for a message of `bytes`.
pub fn frame_prefix(bytes: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    api::grpc::prefix(bytes).ok_or_else(|| grpc_errors::too_large_to_send(bytes))
}

/// Returns the length of the message after `prefix`. Rejects messages that are too large, and compressed
/// ones.
pub(super) fn accepted_length(prefix: Prefix, bytes_max: usize) -> Result<usize, Status> {
    let length = prefix.message_bytes;
    match prefix.format {
        _ if length > bytes_max => Err(grpc_errors::too_large(length, bytes_max)),
        0 => Ok(length),
        1 => Err(grpc_errors::compressed_unannounced()),
        format => Err(grpc_errors::unknown_format(format)),
    }
}

/// Sends an error as a response with headers only.
pub(super) fn send_status(writer: &mut StreamWriter, status: Status) -> Result<(), StreamEnded> {
    writer.send_head(&response_block(&status.into_http::<()>()), EndOfBody::Stream)
}

/// Sends an error as trailers, after the headers.
pub(super) fn send_status_after_headers(
    writer: &mut StreamWriter,
    status: Status,
) -> Result<(), StreamEnded> {
    writer.send_trailers(&trailers_block(status.into_http::<()>().headers()))
}

/// Messages up to this size are queued even if the client's window is closed.
pub(super) const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// Time to send a message: `grace` plus the transfer time at `bytes_per_second`.
struct Speed {
    grace: Duration,
    bytes_per_second: u64,
}

/// Based on the slowest links of etcd's clients.
const PACE: Speed = Speed { grace: Duration::from_secs(60), bytes_per_second: 64 << 10 };
/// The largest response, about 60 MiB, has 25 s; other calls wait up to 30 s for response memory.
const PACE_IF_SHORT: Speed = Speed { grace: Duration::from_secs(10), bytes_per_second: 4 << 20 };

impl Speed {
    fn allows(&self, bytes: usize) -> Duration {
        self.grace + Duration::from_secs(bytes as u64 / self.bytes_per_second)
    }
}

/// Returns the time until which a client has to take a message of `bytes`.
pub(super) fn send_deadline(began: Instant, bytes: usize, account: &Account) -> Instant {
    let speed = if account.is_short() { PACE_IF_SHORT } else { PACE };
    began + speed.allows(bytes)
}

/// Sends `data`, accounted for until it is sent. Resets the stream of a client that is too slow.
pub(super) async fn send_data(
    writer: &mut StreamWriter,
    data: Bytes,
    account: &Arc<Account>,
) -> Result<(), StreamEnded> {
    let (began, bytes) = (Instant::now(), data.len());
    let mut data = counted(account, data);
    while !data.is_empty() {
        if Instant::now() > send_deadline(began, bytes, account) {
            writer.send_reset(ErrorCode::CANCEL);
            return Err(StreamEnded);
        }
        let wanted = data.len();
        if let Ok(granted) = timeout(LOOK_AGAIN, poll_fn(|context| writer.poll_room(wanted, context))).await {
            writer.send_data(data.split_to(granted?), EndOfBody::More)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::{PutResponse, ResponseHeader};
    use h2::Reason;
    use tokio::io::duplex;
    use tokio::time::sleep;

    use super::super::wire::testing::first_stream;
    use super::*;

    #[test]
    fn a_frame_carries_its_length() {
        let header = Some(ResponseHeader { revision: 2, ..ResponseHeader::default() });
        let frame = framed(&PutResponse { header, prev_kv: None }).unwrap();
        assert_eq!(&frame[..], b"\0\0\0\0\x04\x0a\x02\x18\x02");
        assert_eq!(&framed(&PutResponse::default()).unwrap()[..], b"\0\0\0\0\0");
    }

    /// Returns the outcome for a client that reads `bytes_per_second`.
    async fn sent_to(
        bytes: usize,
        bytes_per_second: usize,
        unsent_elsewhere: usize,
    ) -> Result<Duration, Reason> {
        let (ours, theirs) = duplex(1 << 20);
        let account = Arc::new(Account::new(Arc::default()));
        let elsewhere = Arc::new(Account::new(account.totals()));
        let _elsewhere = counted(&elsewhere, vec![0; unsent_elsewhere].into());
        tokio::spawn(async move {
            let mut writer = first_stream(ours).await;
            writer.send_head(&HEADERS, EndOfBody::More).unwrap();
            if send_data(&mut writer, vec![0; bytes].into(), &account).await.is_ok() {
                writer.send_data(Bytes::new(), EndOfBody::Stream).unwrap();
            }
            assert_eq!(account.unsent(), 0, "an answer that was given up holds no memory");
        });
        let (client, connection) = h2::client::handshake(theirs).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("http://localhost/").body(()).unwrap();
        let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
        let (began, mut body) = (Instant::now(), response.await.unwrap().into_body());
        while let Some(data) = body.data().await {
            let data = data.map_err(|error| error.reason().unwrap())?;
            sleep(Duration::from_millis(data.len() as u64 * 1000 / bytes_per_second as u64)).await;
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        Ok(began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_gets_its_answer_unless_others_are_short_of_memory() {
        let slow = sent_to(8 << 20, 80 << 10, 0).await.unwrap();
        assert!(slow > Duration::from_secs(100), "{slow:?}");
        assert_eq!(sent_to(8 << 20, 20 << 10, 0).await, Err(Reason::CANCEL));
        assert_eq!(sent_to(8 << 20, 80 << 10, 80 << 20).await, Err(Reason::CANCEL));
        let fast = sent_to(8 << 20, 8 << 20, 80 << 20).await.unwrap();
        assert!(fast < Duration::from_secs(2), "{fast:?}");
    }

    #[test]
    fn the_time_of_an_answer_goes_by_its_size_and_by_the_memory_there_is() {
        assert_eq!(PACE.allows(0), Duration::from_secs(60));
        assert_eq!(PACE.allows(32 << 20), Duration::from_secs(60 + 512));
        assert_eq!(PACE_IF_SHORT.allows(60 << 20), Duration::from_secs(25));
    }
}
