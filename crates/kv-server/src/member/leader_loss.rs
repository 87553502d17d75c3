//! Notices that this member has known no leader for some time, for streams that ask for one.

use std::time::Duration;

use raft_node::Handle;
use state_machine::Outcome;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Election timeouts without a leader after which streams end: etcd's number.
const CHECKS_WITHOUT_LEADER: u32 = 3;

/// Counts the times that the leader was lost for too long.
#[derive(Clone)]
pub(crate) struct LeaderLoss(watch::Receiver<u64>);

impl LeaderLoss {
    /// Checks once in each election timeout, in a task that ends with the last receiver.
    pub(crate) fn observe(raft: Handle<Outcome>, election_timeout: Duration) -> LeaderLoss {
        Self::of(election_timeout, move || raft.status().leader.is_some())
    }

    fn of(election_timeout: Duration, has_leader: impl Fn() -> bool + Send + 'static) -> LeaderLoss {
        let (losses, receiver) = watch::channel(0);
        tokio::spawn(async move {
            let mut checks = interval_at(Instant::now() + election_timeout, election_timeout);
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut without_leader = 0;
            while !losses.is_closed() {
                checks.tick().await;
                without_leader = if has_leader() { 0 } else { without_leader + 1 };
                if without_leader == CHECKS_WITHOUT_LEADER {
                    losses.send_modify(|losses| *losses += 1);
                }
            }
        });
        LeaderLoss(receiver)
    }

    /// Returns when the leader is lost for too long, after this call.
    pub(crate) async fn lost(&self) {
        let mut losses = self.0.clone();
        losses.mark_unchanged();
        if losses.changed().await.is_err() {
            std::future::pending().await // The member stops, which ends the stream.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_is_lost_after_three_checks_without_one() {
        let has_leader = Arc::new(AtomicBool::new(true));
        let theirs = Arc::clone(&has_leader);
        let loss = LeaderLoss::of(Duration::from_secs(1), move || theirs.load(Relaxed));
        let lost_within = async |limit| tokio::time::timeout(limit, loss.lost()).await.is_ok();
        assert!(!lost_within(Duration::from_millis(10_500)).await);
        for _ in 0..5 {
            has_leader.store(false, Relaxed);
            assert!(!lost_within(Duration::from_secs(2)).await, "too early");
            has_leader.store(true, Relaxed);
            assert!(!lost_within(Duration::from_secs(2)).await);
        }
        has_leader.store(false, Relaxed);
        let began = Instant::now();
        loss.lost().await;
        assert_eq!(began.elapsed(), Duration::from_millis(2500));
        assert!(!lost_within(Duration::from_secs(100)).await, "one loss ends each stream once");
    }
}
