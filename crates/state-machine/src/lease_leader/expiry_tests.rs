use crate::command::{self, Kind, LeaseRenew};
use crate::{Answer, EtcdMachine, Genesis};
use mvcc::{LogPosition, MemoryBackend, StoreOptions};

use api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest};

use super::*;

/// A machine and an expiry queue for its leases.
struct ExpiryFixture {
    machine: EtcdMachine,
    index: u64,
}

impl ExpiryFixture {
    fn new() -> Self {
        let (writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
        ExpiryFixture { machine: EtcdMachine::new(writer, &Genesis::default()).unwrap(), index: 0 }
    }

    fn apply(&mut self, kind: Kind) {
        self.index += 1;
        let at = LogPosition::new(self.index, 1);
        self.machine.apply(at, &command::encode(kind), Answer::Wanted).unwrap().unwrap().unwrap();
        self.machine.end_entry(at).unwrap();
    }

    /// Grants `ids` and records them at `now`.
    fn grant(&mut self, ids: &[i64], ttl: i64, now: i64) {
        ids.iter().for_each(|id| self.apply(Kind::LeaseGrant(LeaseGrantRequest { id: *id, ttl })));
        self.renew(ids, now);
    }

    fn renew(&mut self, ids: &[i64], now: i64) {
        self.apply(Kind::LeaseRenew(LeaseRenew { term: 1, now, ids: ids.to_vec(), granted: None }));
    }

    fn revoke(&mut self, id: i64) {
        self.apply(Kind::LeaseRevoke(LeaseRevokeRequest { id }));
    }
}

/// Returns all leases due at `now`.
fn due(queue: &mut ExpiryQueue, subject: &ExpiryFixture, now: i64) -> Vec<i64> {
    let mut expired = Vec::new();
    loop {
        let turn = queue.turn(now, subject.machine.leases(), 100);
        expired.extend(turn.expired);
        if !turn.has_more {
            expired.sort_unstable();
            return expired;
        }
    }
}

#[test]
fn leases_are_due_after_deadline_and_grace_and_not_before() {
    let mut subject = ExpiryFixture::new();
    subject.grant(&[1, 2], 10, 1_000);
    subject.grant(&[3], 20, 1_000);
    let mut queue = ExpiryQueue::new();
    for (now, expected) in [
        (1_000, vec![]),
        (11_000, vec![]),
        (11_499, vec![]),
        (11_500 + BUCKET_MS, vec![1, 2]),
        // Each is returned once: the caller re-queues the ones that it did not revoke.
        (11_500 + 2 * BUCKET_MS, vec![]),
        (21_499, vec![]),
        (21_500 + BUCKET_MS, vec![3]),
    ] {
        assert_eq!(due(&mut queue, &subject, now), expected, "{now}");
    }
}

#[test]
fn a_renewed_lease_is_queued_again_and_a_revoked_one_is_forgotten() {
    let mut subject = ExpiryFixture::new();
    subject.grant(&[1, 2, 3], 10, 0);
    let mut queue = ExpiryQueue::new();
    assert_eq!(due(&mut queue, &subject, 0), [0; 0]);
    subject.renew(&[1], 9_000);
    subject.revoke(2);
    assert_eq!(due(&mut queue, &subject, 11_000), [3]);
    assert_eq!(queue.len(), 1, "only the renewed one is left");
    assert_eq!(due(&mut queue, &subject, 19_499), [0; 0]);
    assert_eq!(due(&mut queue, &subject, 19_500 + BUCKET_MS), [1]);
}

#[test]
fn after_a_pause_of_the_machine_only_what_was_recorded_before_it_is_due() {
    let mut subject = ExpiryFixture::new();
    subject.grant(&[1, 2], 10, 0);
    let mut queue = ExpiryQueue::new();
    assert_eq!(due(&mut queue, &subject, 5_000), [0; 0]);
    // An hour later, a delayed renewal is recorded before the queue's next turn.
    subject.renew(&[2], 3_600_000);
    assert_eq!(due(&mut queue, &subject, 3_600_000), [1]);
}

#[test]
fn a_lease_without_a_deadline_is_never_due() {
    let mut subject = ExpiryFixture::new();
    subject.apply(Kind::LeaseGrant(LeaseGrantRequest { id: 5, ttl: 2 }));
    let mut queue = ExpiryQueue::new();
    assert_eq!(due(&mut queue, &subject, 1_000_000_000), [0; 0]);
    assert_eq!(queue.len(), 1, "it is looked at again");
    // A renewal of a client may record it before the leader's own turn.
    subject.renew(&[5], 1_000_000_000);
    assert_eq!(due(&mut queue, &subject, 1_000_002_499), [0; 0]);
    assert_eq!(due(&mut queue, &subject, 1_000_002_500 + BUCKET_MS), [5]);
}

#[test]
fn a_lease_that_was_not_revoked_is_looked_at_again_after_a_pause() {
    let mut subject = ExpiryFixture::new();
    subject.grant(&[1], 2, 0);
    let mut queue = ExpiryQueue::new();
    assert_eq!(due(&mut queue, &subject, 3_000), [1]);
    queue.retry(1, 3_000, 1_000);
    assert_eq!(due(&mut queue, &subject, 3_900), [0; 0]);
    assert_eq!(due(&mut queue, &subject, 4_000 + BUCKET_MS), [1]);
}

#[test]
fn a_turn_is_bounded_also_when_all_leases_are_due_at_once() {
    let mut subject = ExpiryFixture::new();
    let ids: Vec<i64> = (1..=5_000).collect();
    subject.grant(&ids, 10, 0);
    let mut queue = ExpiryQueue::new();
    let mut expired = 0;
    for turn in 1.. {
        let due = queue.turn(60_000, subject.machine.leases(), 1_000);
        assert!(due.expired.len() <= 1_000, "turn {turn}");
        expired += due.expired.len();
        if !due.has_more {
            assert!(turn <= 11, "{turn} turns");
            break;
        }
    }
    assert_eq!(expired, 5_000);
}

#[test]
fn a_lease_that_is_queued_twice_is_due_once_in_a_turn() {
    let mut subject = ExpiryFixture::new();
    subject.grant(&[1], 2, 0);
    let mut queue = ExpiryQueue::new();
    queue.push(1, 2_000);
    assert_eq!(due(&mut queue, &subject, 5_000), [1]);
}

#[test]
fn grants_during_and_after_the_scan_are_queued_whoever_records_them() {
    let mut subject = ExpiryFixture::new();
    subject.machine.leases().list_granted();
    let mut queue = ExpiryQueue::new();
    assert_eq!(due(&mut queue, &subject, 0), [0; 0]);
    subject.grant(&[1, 2], 2, 0);
    queue.add_granted(subject.machine.leases().take_granted(), 100);
    assert!(subject.machine.leases().take_granted().is_empty(), "taken once");
    assert_eq!(due(&mut queue, &subject, 2_400), [0; 0]);
    assert_eq!(due(&mut queue, &subject, 2_500 + BUCKET_MS), [1, 2]);
    subject.machine.leases().unlist_granted();
    subject.grant(&[3], 2, 0);
    assert!(subject.machine.leases().take_granted().is_empty(), "a follower lists nothing");
}
