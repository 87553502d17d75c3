//! Calls that finish their work when their client has gone.
//!
//! The future of a call is dropped when the client resets it, when its connection ends, and at its deadline.
//! A task of its own finishes what the call has begun: a key that was put is deleted. When the member stops,
//! the task ends as well: a wait may have no end.

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tonic::Status;

use crate::errors;
use crate::process::shutdown::Stop;

/// Known to the task: whether the client waits, and the member goes on.
pub struct Attendance {
    client_gone: oneshot::Receiver<()>,
    stop: Stop,
}

impl Attendance {
    /// Waits for `work` while the client is there and the member goes on. Otherwise CANCELLED or UNAVAILABLE.
    pub async fn during<T>(&mut self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            biased;
            done = work => done,
            _ = &mut self.client_gone => Err(errors::cancelled()),
            () = self.stop.stopped() => Err(errors::stopped()),
        }
    }

    /// CANCELLED when the client has gone: it will not read the response. To be asked once, after the work.
    pub fn check(&mut self) -> Result<(), Status> {
        match self.client_gone.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(()) | Err(TryRecvError::Closed) => Err(errors::cancelled()),
        }
    }
}

/// Runs `work` to its end, also when the returned future is dropped.
pub async fn attended<T, W>(stop: Stop, work: impl FnOnce(Attendance) -> W) -> Result<T, Status>
where
    T: Send + 'static,
    W: Future<Output = Result<T, Status>> + Send + 'static,
{
    let (present, client_gone) = oneshot::channel();
    let done = tokio::spawn(work(Attendance { client_gone, stop })).await;
    drop(present); // Held until here: dropping this future earlier notifies the task.
    done.unwrap_or_else(|error| Err(errors::unfinished(&error)))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use crate::process::shutdown;

    /// A call that waits for ever, and reports how its task ends.
    fn waiting(stop: Stop, report: mpsc::Sender<String>) -> impl Future<Output = Result<(), Status>> {
        attended(stop, async move |mut attendance: Attendance| {
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
            let checked = Attendance { client_gone, stop: stop.clone() }.check();
            assert_eq!(checked.err().map(|status| status.code()), code);
            drop(present);
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
        let done =
            attended(stop, async |mut attendance: Attendance| attendance.during(async { Ok(7) }).await);
        assert_eq!(done.await.unwrap(), 7);
    }
}
