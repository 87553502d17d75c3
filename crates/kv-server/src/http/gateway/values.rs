//! The JSON objects of a body, one after another, in bounded memory and time.
//!
//! The border of an object is found by its braces alone, each byte looked at once; whether it is JSON is for
//! its reader to say. What follows the object that a call needs is not read.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::budget::{Budget, Held};
use crate::errors;

/// Time for one object to arrive, from its first byte on.
const OBJECT_WITHIN: Duration = Duration::from_secs(30);
/// Objects and arrays inside one another. Each takes stack while it is read; etcd's limit is 10,000.
const DEPTH_MAX: usize = 64;

/// Reads the objects of a body.
pub(super) struct Values {
    body: Body,
    border: Border,
    read: BytesMut,
    held: Held,
    bytes_max: usize,
    has_ended: bool,
}

impl Values {
    /// Each object has at most `bytes_max` bytes.
    pub fn new(body: Body, bytes_max: usize) -> Values {
        let (border, read, held) = (Border::default(), BytesMut::new(), Held::default());
        Values { body, border, read, held, bytes_max, has_ended: false }
    }

    /// The next object, or None after the last. What is no object is returned as it is.
    pub async fn next(&mut self, budget: &Budget) -> Result<Option<Bytes>, Status> {
        self.held = Held::default();
        let mut deadline = None;
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
                return Err(errors::too_large(self.read.len(), self.bytes_max));
            }
            if !budget.request(&mut self.held, self.read.len()) {
                return Err(errors::too_many_request_bytes());
            }
            if !self.read.is_empty() {
                deadline.get_or_insert_with(|| Instant::now() + OBJECT_WITHIN);
            }
            self.receive(deadline).await?;
        }
    }

    async fn receive(&mut self, deadline: Option<Instant>) -> Result<(), Status> {
        let frame = match deadline {
            Some(deadline) => timeout_at(deadline, self.body.frame()).await,
            None => Ok(self.body.frame().await),
        };
        match frame {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.read.extend_from_slice(data);
                }
            }
            Ok(Some(Err(_))) => return Err(Status::new(Code::InvalidArgument, "unexpected EOF")),
            Ok(None) => self.has_ended = true,
            Err(_) => return Err(errors::incomplete_too_long()),
        }
        Ok(())
    }
}

/// Finds the end of an object in bytes that arrive one after another.
#[derive(Default)]
struct Border {
    position: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Border {
    /// The length of the object that begins `bytes`, leading white space included, or of something else that
    /// ends. `bytes` may have grown since the last call.
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

    /// The objects of a body that arrives in pieces.
    async fn objects(pieces: &[&'static str]) -> Result<Vec<String>, Status> {
        let pieces: Vec<Result<Bytes, std::convert::Infallible>> =
            pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let mut values = Values::new(Body::from_stream(tokio_stream::iter(pieces)), 64);
        let (budget, mut found) = (Budget::default(), Vec::new());
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
