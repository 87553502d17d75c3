//! Detects that this member has had no leader for some time, for streams that require one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Election timeouts without a leader after which streams are canceled: etcd's value.
const TIMEOUTS_WITHOUT_LEADER: u32 = 3;

/// Counter of leader losses.
#[derive(Clone)]
pub(crate) struct LeaderLoss(watch::Receiver<u64>);

impl LeaderLoss {
    /// Starts the counting task, which exits with the last receiver. It is not woken while there is a leader.
    pub(crate) fn observe(
        mut leader: watch::Receiver<Option<u64>>,
        election_timeout: Duration,
    ) -> LeaderLoss {
        let (losses, receiver) = watch::channel(0);
        let counting = async move {
            while leader.wait_for(Option::is_none).await.is_ok() {
                let within = TIMEOUTS_WITHOUT_LEADER * election_timeout;
                if timeout(within, leader.wait_for(Option::is_some)).await.is_err() {
                    losses.send_modify(|losses| *losses += 1);
                    let _member_stops = leader.wait_for(Option::is_some).await;
                }
            }
        };
        tokio::spawn(counting);
        LeaderLoss(receiver)
    }

    /// Returns at the first leader loss after this call.
    pub(crate) async fn lost(&self) {
        let mut losses = self.0.clone();
        losses.mark_unchanged();
        if losses.changed().await.is_err() {
            std::future::pending().await // The member stops, which closes the stream.
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_is_lost_after_three_timeouts_without_one() {
        let leader = watch::Sender::new(Some(1));
        let loss = LeaderLoss::observe(leader.subscribe(), Duration::from_secs(1));
        let lost_within = async |limit| tokio::time::timeout(limit, loss.lost()).await.is_ok();
        assert!(!lost_within(Duration::from_millis(10_500)).await);
        for _ in 0..5 {
            leader.send_replace(None);
            assert!(!lost_within(Duration::from_secs(2)).await, "too early");
            leader.send_replace(Some(1));
            assert!(!lost_within(Duration::from_secs(2)).await);
        }
        leader.send_replace(None);
        let began = Instant::now();
        loss.lost().await;
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        assert!(!lost_within(Duration::from_secs(100)).await, "one loss ends each stream once");
    }
}
