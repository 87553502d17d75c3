//! The messages that the services answer, one after another, and the status at the end.

use api::grpc::{PREFIX_BYTES, Prefix};
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use http::Response;
use tonic::{Code, Status};

use super::budget::{ANSWER_BYTES_MAX, Budget, BudgetPass};

/// The answers of one call.
pub(super) struct CallAnswers {
    body: RecvStream,
    read: BytesMut,
    /// The status of a call that was refused at once.
    refused: Option<Status>,
}

/// A message without its prefix, and the bytes that it counts for.
pub(super) struct AnswerMessage {
    pub bytes: Bytes,
    pub held: BudgetPass,
}

impl CallAnswers {
    pub fn new(response: Response<RecvStream>) -> CallAnswers {
        let (parts, body) = response.into_parts();
        CallAnswers { body, read: BytesMut::new(), refused: Status::from_header_map(&parts.headers) }
    }

    /// The next message, or the status that ends the call.
    pub async fn next(&mut self, budget: &Budget) -> Result<AnswerMessage, Status> {
        if let Some(status) = self.refused.take() {
            return Err(status);
        }
        let length = loop {
            match Prefix::of(&self.read) {
                Some(prefix) => break prefix.message_bytes,
                None => self.receive().await?,
            }
        };
        if length > ANSWER_BYTES_MAX {
            return Err(grpc_errors::answer_too_large(ANSWER_BYTES_MAX as u64));
        }
        let held = budget.answer(length).await?;
        self.read.reserve((PREFIX_BYTES + length).saturating_sub(self.read.len()));
        while self.read.len() < PREFIX_BYTES + length {
            self.receive().await?;
        }
        self.read.advance(PREFIX_BYTES);
        Ok(AnswerMessage { bytes: self.read.split_to(length).freeze(), held })
    }

    /// Reads one part of the body, or the status that ends the call.
    async fn receive(&mut self) -> Result<(), Status> {
        match self.body.data().await {
            Some(Ok(data)) => {
                // Only fails when the stream is closed, which the next read reports with its reason.
                drop(self.body.flow_control().release_capacity(data.len()));
                self.read.extend_from_slice(&data);
                Ok(())
            }
            Some(Err(error)) => Err(lost(&error)),
            None => Err(match self.body.trailers().await {
                Ok(Some(trailers)) => Status::from_header_map(&trailers).unwrap_or_else(no_status),
                Ok(None) => no_status(),
                Err(error) => lost(&error),
            }),
        }
    }
}

/// The status of a call whose connection or stream broke.
pub(super) fn lost(error: &h2::Error) -> Status {
    Status::new(Code::Unavailable, format!("the call was cut short: {error}"))
}

fn no_status() -> Status {
    Status::new(Code::Internal, "the call ended without a status")
}
