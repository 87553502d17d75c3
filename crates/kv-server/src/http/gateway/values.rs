//! Splits a body into JSON objects, with bounded memory and time.
//!
//! The boundary of an object is found by counting braces, inspecting each byte once; its reader validates
//! the JSON. Input after the last required object is not read.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Status};

use super::budget::{Budget, BudgetPass};

/// Time for one object to arrive: from its first byte, or from the start of a call that requires it.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between checks whether the caller of an incomplete object is over its share.
const SHARE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum nesting of objects and arrays, since parsing uses the stack; etcd's limit is 10,000.
const DEPTH_MAX: usize = 64;

pub(super) struct Values {
    body: Body,
    border: Border,
    read: BytesMut,
    held: BudgetPass,
    bytes_max: usize,
    has_ended: bool,
    /// Deadline of the next object, if it was set before its first byte.
    deadline: Option<Instant>,
}

impl Values {
    /// Returns a reader for objects of at most `bytes_max` bytes.
    pub fn new(body: Body, bytes_max: usize) -> Values {
        let (border, read, held) = (Border::default(), BytesMut::new(), BudgetPass::default());
        Values { body, border, read, held, bytes_max, has_ended: false, deadline: None }
    }

    /// Like [`Values::new`], for a call that needs its first object to start: its time starts now.
    pub fn due(body: Body, bytes_max: usize) -> Values {
        Values { deadline: Some(Instant::now() + OBJECT_TIMEOUT), ..Values::new(body, bytes_max) }
    }

    /// Returns the next object, or None after the last. Other JSON values are returned unchanged.
    pub async fn next(&mut self, budget: &Budget) -> Result<Option<Bytes>, Status> {
        self.held = BudgetPass::default();
        let mut deadline = self.deadline.take();
        loop {
            if let Some(end) = self.border.find(&self.read)? {
                self.border = Border::default();
                return Ok(Some(self.read.split_to(end).freeze()));
            }
            if self.read.iter().all(u8::is_ascii_whitespace) {
                self.read.clear();
                self.border = Border::default();
            }
            if self.has_ended {
                let rest = std::mem::take(&mut self.read).freeze();
                return Ok((!rest.is_empty()).then_some(rest));
            }
            if self.read.len() > self.bytes_max {
                return Err(grpc_errors::too_large(self.read.len(), self.bytes_max));
            }
            if !budget.request(&mut self.held, self.read.len()) {
                return Err(grpc_errors::too_many_request_bytes());
            }
            if !self.read.is_empty() {
                deadline.get_or_insert_with(|| Instant::now() + OBJECT_TIMEOUT);
            }
            self.receive(deadline).await?;
        }
    }

    async fn receive(&mut self, deadline: Option<Instant>) -> Result<(), Status> {
        let frame = async {
            loop {
                if let Ok(frame) = timeout(SHARE_CHECK_INTERVAL, self.body.frame()).await {
                    return Ok(frame);
                }
                if self.held.is_over_share() {
                    return Err(grpc_errors::too_many_request_bytes());
                }
            }
        };
        let frame = match deadline {
            Some(deadline) => {
                timeout_at(deadline, frame).await.map_err(|_| grpc_errors::incomplete_too_long())?
            }
            None => frame.await,
        };
        match frame? {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.read.extend_from_slice(data);
                }
            }
            Some(Err(_)) => return Err(Status::new(Code::InvalidArgument, "unexpected EOF")),
            None => self.has_ended = true,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Border {
    position: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Border {
    /// Returns the length of the first object or other value in `bytes`, including leading white space, if
    /// it is complete. `bytes` may have grown since the last call.
    fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        while let Some(byte) = bytes.get(self.position) {
            self.position += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' if self.depth == DEPTH_MAX => {
                    let text = format!("exceeded max depth of {DEPTH_MAX}");
                    return Err(Status::new(Code::InvalidArgument, text));
                }
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' => return Ok(Some(self.position)),
                _ if self.depth == 0 && !byte.is_ascii_whitespace() => return Ok(Some(self.position)),
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new(&super::super::budget::gate(), Default::default())
    }

    /// Returns the objects of a body that arrives in pieces.
    async fn objects(pieces: &[&'static str]) -> Result<Vec<String>, Status> {
        let pieces: Vec<Result<Bytes, std::convert::Infallible>> =
            pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let mut values = Values::new(Body::from_stream(tokio_stream::iter(pieces)), 64);
        let (budget, mut found) = (budget(), Vec::new());
        while let Some(value) = values.next(&budget).await? {
            found.push(String::from_utf8(value.to_vec()).unwrap());
        }
        Ok(found)
    }

    #[tokio::test]
    async fn objects_are_cut_at_their_last_brace_wherever_the_body_is_cut() {
        for (pieces, wanted) in [
            (&[""][..], &[][..]),
            (&[" \n "], &[]),
            (&["{}"], &["{}"]),
            (&["{}{\"a\":[{}]}"], &["{}", "{\"a\":[{}]}"]),
            (&[" {\"a", "\":\"}\\", "\"}\"", "}\n {}"], &[" {\"a\":\"}\\\"}\"}", "\n {}"]),
            (&["{\"a\""], &["{\"a\""]),
            (&["nul"], &["n", "u", "l"]),
        ] {
            assert_eq!(objects(pieces).await.unwrap(), wanted, "{pieces:?}");
        }
    }

    /// Sends a piece now and after each second, or none at all. The body never completes.
    fn each_second(
        piece: Option<&'static str>,
    ) -> impl futures_util::Stream<Item = Result<&'static str, std::convert::Infallible>> {
        futures_util::stream::unfold(Duration::ZERO, move |pause| async move {
            tokio::time::sleep(pause).await;
            match piece {
                Some(piece) => Some((Ok(piece), Duration::from_secs(1))),
                None => std::future::pending().await,
            }
        })
    }

    /// Only a call that can make progress before its first object waits for it indefinitely.
    #[tokio::test(start_paused = true)]
    async fn a_body_without_an_object_ends_with_its_time() {
        for (piece, first_is_due, ends) in [
            (None, true, true),
            (Some(" "), true, true),
            (Some("{"), true, true),
            (Some("{"), false, true),
            (None, false, false),
        ] {
            let begun = Instant::now();
            let body = Body::from_stream(each_second(piece));
            let mut values = if first_is_due { Values::due(body, 64) } else { Values::new(body, 64) };
            let budget = budget();
            let next = tokio::time::timeout(10 * OBJECT_TIMEOUT, values.next(&budget)).await;
            assert_eq!(next.is_ok(), ends, "{piece:?}, {first_is_due}");
            if let Ok(next) = next {
                assert_eq!(next.unwrap_err().code(), Code::DeadlineExceeded, "{piece:?}");
                assert_eq!(begun.elapsed(), OBJECT_TIMEOUT, "{piece:?}");
            }
        }
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_or_too_deep_is_refused() {
        let long =
            objects(&["{\"a\":\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"])
                .await;
        assert_eq!(long.unwrap_err().code(), Code::ResourceExhausted);
        let mut border = Border::default();
        assert!(border.find("[".repeat(DEPTH_MAX).as_bytes()).unwrap().is_none());
        assert_eq!(
            border.find("[".repeat(DEPTH_MAX + 1).as_bytes()).unwrap_err().message(),
            "exceeded max depth of 64"
        );
    }
}
