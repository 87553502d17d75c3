//! Maintenance.Snapshot: streams the store as etcd's database file.
//!
//! ```text
//!   pass ─▶ pin the history, plan (turn) ─▶ (turn ─▶ 512 KiB of the file ─▶ messages of 32 KiB) … ─▶ SHA-256
//! ```
//!
//! * A file reflects one revision. Writes continue in the meantime. Compactions take effect, but free no
//!   space until the stream is closed.
//! * [`admission::Admission::snapshots`] limits the number of streams. Each part is created on a blocking
//!   thread with a read permit, which is released before the part is sent.
//! * Each message is taken after the client has taken the previous one. The connection resets a client that
//!   takes no data for a minute. A client below [`BYTES_PER_SECOND_MIN`] is rejected, because compactions
//!   wait for it.
//! * Completing or cancelling the call drops the file, and with it the pin.

use std::sync::Arc;
use std::time::Duration;

use api::etcdserverpb::SnapshotResponse;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use mvcc::Meter;
use sha2::{Digest, Sha256};
use state_machine::Failure;
use tokio::time::Instant;
use tonic::Status;

use crate::member::Member;
use admission::{ClientId, Pass};
use api::version;
use snapshot_file::{ExportError, SnapshotFile};

/// Bytes of a message, as in etcd.
const MESSAGE_BYTES: usize = 32 << 10;
/// Bytes that are made in one turn. The memory of a stream is twice that.
const PART_BYTES: usize = 512 << 10;
/// Minimum rate of a client: 2 Mbit/s, after [`GRACE`], or the rate for the whole file in [`TRANSFER_TIMEOUT`].
/// Compactions free no space in the meantime.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// Additional time for the client at the minimum rate.
const GRACE: Duration = Duration::from_secs(60);

/// A file that is being sent.
struct Sending {
    member: Arc<Member>,
    client: ClientId,
    /// None while a part is being created.
    file: Option<Box<SnapshotFile>>,
    /// Created, and not sent yet.
    part: Bytes,
    remaining: u64,
    sent: u64,
    hasher: Sha256,
    began: Instant,
    progress: SnapshotProgress,
    _pass: Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotProgress {
    File,
    Hash,
    Ended,
}

/// Returns the response to a call. The history is pinned and the file planned before the first message.
pub async fn stream(
    member: Arc<Member>,
    client: ClientId,
) -> Result<impl Stream<Item = Result<SnapshotResponse, Status>>, Status> {
    let admission = &member.admission;
    let pass = admission.snapshots.enter(client, 1).await.map_err(|_| grpc_errors::reads_exhausted())?;
    let store = member.store.clone();
    let plan = move |meter: &dyn Meter| SnapshotFile::plan(store.pin_history(), meter).map_err(failure);
    let file = admission.within(&admission.turns, client, plan).await?;
    tracing::info!(bytes = file.bytes(), "sending database snapshot to client");
    let sending = Sending {
        remaining: file.bytes(),
        file: Some(Box::new(file)),
        part: Bytes::new(),
        sent: 0,
        hasher: Sha256::new(),
        began: Instant::now(),
        progress: SnapshotProgress::File,
        _pass: pass,
        client,
        member,
    };
    Ok(stream::try_unfold(sending, |mut sending| async move {
        Ok(sending.next().await?.map(|message| (message, sending)))
    }))
}

/// Converts the error to that of a read.
fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::History(mvcc::Error::Interrupted) => Failure::Interrupted,
        ExportError::History(error)
        | ExportError::State(state_machine::ApplyError::Store { source: error, .. }) => {
            Failure::Broken(error)
        }
        ExportError::State(fatal) => {
            tracing::error!(error = &fatal as &dyn std::error::Error, "state cannot be decoded");
            Failure::Refused(api::Error::Corrupt)
        }
    }
}

impl Sending {
    async fn next(&mut self) -> Result<Option<SnapshotResponse>, Status> {
        // Only the last message of the file is shorter.
        while self.progress == SnapshotProgress::File && self.part.len() < MESSAGE_BYTES {
            self.make_part().await?;
        }
        let blob = match self.progress {
            SnapshotProgress::File => self.take(MESSAGE_BYTES),
            SnapshotProgress::Hash if !self.part.is_empty() => self.take(self.part.len().min(MESSAGE_BYTES)),
            SnapshotProgress::Hash => {
                self.progress = SnapshotProgress::Ended;
                Bytes::copy_from_slice(&self.hasher.finalize_reset())
            }
            SnapshotProgress::Ended => {
                let (bytes, took) = (self.sent, self.began.elapsed());
                self.member.metrics.disk.backend_snapshot_seconds.observe(took.as_secs_f64());
                tracing::info!(bytes, ?took, "successfully sent database snapshot to client");
                return Ok(None);
            }
        };
        Ok(Some(self.message(blob)))
    }

    /// Takes the next bytes of the part.
    fn take(&mut self, bytes: usize) -> Bytes {
        let blob = self.part.split_to(bytes);
        self.remaining -= bytes as u64;
        self.sent += bytes as u64;
        blob
    }

    fn message(&self, blob: Bytes) -> SnapshotResponse {
        let version = version::CLUSTER.to_owned();
        SnapshotResponse { header: None, remaining_bytes: self.remaining, blob, version }
    }

    /// Creates the next part of the file, or records its end.
    async fn make_part(&mut self) -> Result<(), Status> {
        let pace = slowest_pace(self.sent + self.remaining);
        if is_too_slow(self.sent, pace, self.began.elapsed()) {
            return Err(grpc_errors::snapshot_too_slow(pace));
        }
        let (mut file, mut hasher) =
            (self.file.take().expect("put back after each part"), std::mem::take(&mut self.hasher));
        let make = move |meter: &dyn Meter| {
            let part = file.next(PART_BYTES, meter).map_err(failure)?;
            part.iter().for_each(|part| hasher.update(part));
            Ok((file, hasher, part))
        };
        let admission = &self.member.admission;
        let (file, hasher, part) = admission.within(&admission.turns, self.client, make).await?;
        (self.file, self.hasher) = (Some(file), hasher);
        match part {
            Some(part) if self.part.is_empty() => self.part = part.into(),
            Some(part) => self.part = [&self.part[..], &part[..]].concat().into(),
            None => {
                assert_eq!(self.remaining, self.part.len() as u64, "the file has the size that was planned");
                self.progress = SnapshotProgress::Hash;
            }
        }
        Ok(())
    }
}

/// Returns the minimum rate for a file of this size.
fn slowest_pace(bytes: u64) -> u64 {
    BYTES_PER_SECOND_MIN.max(bytes / TRANSFER_TIMEOUT.as_secs())
}

/// Reports whether a client has taken too little since its stream started.
fn is_too_slow(sent: u64, pace: u64, took: Duration) -> bool {
    took > GRACE + Duration::from_secs(sent / pace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_too_slow_after_its_grace_at_less_than_the_slowest_speed() {
        let (small, large) = (1 << 30, 20 << 30);
        for (bytes, sent, seconds, is_slow) in [
            (small, 0, 60, false),
            (small, 0, 61, true),
            (small, 256 << 20, 1000, false),
            (small, 256 << 20, 1085, true),
            // It would take 22 hours.
            (large, 256 << 20, 1000, true),
            (large, 10 << 30, 3600, false),
        ] {
            let is_found = is_too_slow(sent, slowest_pace(bytes), Duration::from_secs(seconds));
            assert_eq!(is_found, is_slow, "{sent} of {bytes} in {seconds} s");
        }
    }
}
