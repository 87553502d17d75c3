//! Calls with a response that is produced while it is sent.

use api::grpc::PREFIX_BYTES;
use bytes::Bytes;
use grpc_server::http2::{LongAnswer, Part};
use telemetry::metrics::CallInProgress;
use tonic::{Code, Status};

use super::super::kv::LargeAnswer;

/// A call that completes when the last bytes of its response are produced.
pub struct LongCall {
    inner: LargeAnswer,
    counted: CallInProgress,
    /// Size of the whole message with its prefix; 0 before it starts.
    bytes: u64,
}

impl LongCall {
    pub(super) fn new(inner: LargeAnswer, counted: CallInProgress) -> LongCall {
        LongCall { inner, counted, bytes: 0 }
    }
}

impl LongAnswer for LongCall {
    async fn begin(&mut self) -> Result<u64, Status> {
        let begun = self.inner.begin().await;
        match &begun {
            Ok(bytes) => self.bytes = *bytes,
            Err(status) => self.counted.end(status.code()),
        }
        begun
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        let part = self.inner.part(position).await;
        match &part {
            Ok(part) if position + part.len() as u64 == self.bytes => {
                let bytes = usize::try_from(self.bytes).expect("a message is at most 4 GiB");
                self.counted.sent(bytes.saturating_sub(PREFIX_BYTES));
                self.counted.end(Code::Ok);
            }
            Ok(_) => {}
            Err(status) => self.counted.end(status.code()),
        }
        part
    }

    async fn room(&self) {
        self.inner.room().await;
    }

    fn counted(&self, sent: Bytes) -> Bytes {
        self.inner.counted(sent)
    }

    fn is_wanted(&self) -> bool {
        self.inner.is_wanted()
    }

    fn unread(&mut self) {
        self.counted.end(Code::Cancelled);
        self.inner.unread();
    }
}
