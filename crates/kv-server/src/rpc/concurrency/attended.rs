//! Calls that clean up after their client disconnects.
//!
//! The future of a call is dropped when the client resets it, when its connection closes, and at its
//! deadline. A separate task then finishes the work, such as deleting a key that it put. When the member
//! stops, the task exits as well, since a wait may be unbounded. When the member's state is found to be
//! corrupt, the call fails: its condition would be evaluated on that state.

use std::sync::Arc;
use std::time::Duration;

use api::Error;
use process::shutdown::Stop;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;
use tonic::Status;

use crate::member::Fence;

/// Time limit for cleaning up. By then the leases granted by these services have expired.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts; doubled after each, up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Informs the task about the client, the stop of the member, and its fence.
pub struct Attendance {
    client_gone: oneshot::Receiver<()>,
    stop: Stop,
    fence: Arc<Fence>,
}

impl Attendance {
    /// Waits for `work` while the client is connected and the member is neither stopping nor fenced.
    /// Otherwise fails with CANCELLED, UNAVAILABLE or DATA_LOSS.
    pub async fn during<T>(&mut self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            biased;
            () = self.fence.raised() => Err(grpc_errors::refused(Error::Corrupt)),
            done = work => done,
            _ = &mut self.client_gone => Err(grpc_errors::cancelled()),
            () = self.stop.stopped() => Err(grpc_errors::stopped()),
        }
    }

    /// Retries until `attempt` succeeds, for [`FINISH_TIMEOUT`]: the member may be busy, or without a
    /// leader. Tries once if the client waits for its response. Gives up when the member stops.
    pub async fn finish<T, F>(&mut self, attempt: impl Fn() -> F)
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (ends, mut pause) = (Instant::now() + FINISH_TIMEOUT, PAUSE_MIN);
        while attempt().await.is_err() && self.check().is_err() && Instant::now() < ends {
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (2 * pause).min(PAUSE_MAX),
                () = self.stop.stopped() => return,
            }
        }
    }

    /// Returns CANCELLED if the client has disconnected. Meant to be called after the work.
    pub fn check(&mut self) -> Result<(), Status> {
        match self.client_gone.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(()) | Err(TryRecvError::Closed) => Err(grpc_errors::cancelled()),
        }
    }
}

/// Runs `work` to completion, even if the returned future is dropped.
pub async fn attended<T, W>(
    stop: Stop,
    fence: Arc<Fence>,
    work: impl FnOnce(Attendance) -> W,
) -> Result<T, Status>
where
    T: Send + 'static,
    W: Future<Output = Result<T, Status>> + Send + 'static,
{
    let (present, client_gone) = oneshot::channel();
    let done = tokio::spawn(work(Attendance { client_gone, stop, fence })).await;
    drop(present); // Held until here: dropping this future earlier notifies the task.
    done.unwrap_or_else(|error| Err(grpc_errors::unfinished(&error)))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use process::shutdown;

    /// A call that waits forever, and reports the result of its task.
    fn waiting(stop: Stop, report: mpsc::Sender<String>) -> impl Future<Output = Result<(), Status>> {
        attended(stop, Arc::default(), async move |mut attendance: Attendance| {
            report.send("waits".to_owned()).await.unwrap();
            let left = attendance.during(std::future::pending::<Result<(), Status>>()).await;
            report.send(left.clone().unwrap_err().message().to_owned()).await.unwrap();
            left
        })
    }

    #[tokio::test]
    async fn work_goes_on_when_its_client_has_gone_and_is_notified() {
        let (_stopper, stop) = shutdown::stop();
        let (report, mut reports) = mpsc::channel(2);
        let mut call = Box::pin(waiting(stop, report));
        assert!(call.as_mut().now_or_never().is_none());
        assert_eq!(reports.recv().await.unwrap(), "waits");
        drop(call);
        assert_eq!(reports.recv().await.unwrap(), "context canceled");
    }

    #[tokio::test]
    async fn a_client_that_has_gone_is_noticed_after_the_work() {
        let (_stopper, stop) = shutdown::stop();
        for (client, code) in [(Some(()), None), (None, Some(tonic::Code::Cancelled))] {
            let (present, client_gone) = oneshot::channel();
            let present = client.map(|()| present);
            let checked = Attendance { client_gone, stop: stop.clone(), fence: Arc::default() }.check();
            assert_eq!(checked.err().map(|status| status.code()), code);
            drop(present);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_call_has_begun_is_finished_though_the_member_is_busy() {
        let busy = || grpc_errors::refused(api::Error::TooManyRequests);
        // Failing attempts, expected attempts, seconds taken, member stops, client waits.
        for (failures, attempts, seconds, stops, waits) in [
            (0, 1, 0, false, false),
            (4, 5, 0, false, false),
            (8, 9, 7, false, false),
            (u32::MAX, 36, 61, false, false),
            (9, 1, 0, true, false),
            (9, 1, 0, false, true),
        ] {
            let (stopper, stop) = shutdown::stop();
            let (present, client_gone) = oneshot::channel();
            let _present = waits.then_some(present);
            let (made, began) = (std::cell::Cell::new(0), Instant::now());
            if stops {
                stopper.stop();
            }
            Attendance { client_gone, stop, fence: Arc::default() }
                .finish(|| {
                    made.set(made.get() + 1);
                    std::future::ready(if made.get() > failures { Ok(()) } else { Err(busy()) })
                })
                .await;
            assert_eq!((made.get(), began.elapsed().as_secs()), (attempts, seconds), "{failures} failures");
        }
    }

    #[tokio::test]
    async fn a_wait_ends_when_the_member_stops() {
        let (stopper, stop) = shutdown::stop();
        let (report, _reports) = mpsc::channel(2);
        stopper.stop();
        assert_eq!(waiting(stop, report).await.unwrap_err().code(), tonic::Code::Unavailable);
    }

    #[tokio::test]
    async fn work_is_not_interrupted_while_its_client_waits() {
        let (_stopper, stop) = shutdown::stop();
        let done = attended(stop, Arc::default(), async |mut attendance: Attendance| {
            attendance.during(async { Ok(7) }).await
        });
        assert_eq!(done.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn work_that_a_wrong_state_has_done_does_not_count() {
        let (_stopper, stop) = shutdown::stop();
        let fence = Arc::new(Fence::default());
        fence.set(true);
        let work = async |mut attendance: Attendance| attendance.during(async { Ok(7) }).await;
        assert_eq!(attended(stop, fence, work).await.unwrap_err().code(), tonic::Code::DataLoss);
    }
}
