//! How long the disk has kept this member waiting.

/// How long the oldest job has been on its way to the disk.
///
/// Ticks and no clock: a member that was itself kept from running did not see its disk fail. The first tick
/// only notes which job is the oldest, so a job has waited for at least as many whole ticks as are counted.
#[derive(Default)]
pub(crate) struct DiskStall {
    job: Option<u64>,
    pub ticks: u32,
}

impl DiskStall {
    /// A tick passed while `oldest` was the oldest job without a sync.
    pub fn tick(&mut self, oldest: Option<u64>) -> u32 {
        match oldest {
            Some(job) if self.job == Some(job) => self.ticks = self.ticks.saturating_add(1),
            _ => (self.job, self.ticks) = (oldest, 0),
        }
        self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_that_stays_the_oldest_is_waited_for() {
        let mut stall = DiskStall::default();
        let waited: Vec<u32> = [None, Some(1), Some(1), Some(1), Some(2), Some(2), None, Some(2)]
            .into_iter()
            .map(|oldest| stall.tick(oldest))
            .collect();
        assert_eq!(waited, [0, 0, 1, 2, 0, 1, 0, 0]);
    }
}
