//! Requests of lease clients: grants, revokes, keys with leases, renewals, remaining times.

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest};
use state_machine::WhenExpired;
use state_machine::command::Kind;

use super::ask::{Ask, LeaseQuestion};
use super::draw::Draw;
use crate::chance::mix;

/// Number of ids that clients choose: few, so that they collide. Members assign ids to the
/// remaining requests.
const IDS: u64 = 6;
/// TTLs in seconds. Most leases expire during the faults, and all of these before the end.
const TTLS: [i64; 8] = [1, 1, 2, 2, 3, 3, 4, 100];

impl Draw<'_> {
    /// Draws a request. `granted` are ids assigned by members.
    pub fn ask_of_leases(mut self, granted: &[i64]) -> Ask {
        let id = self.lease(granted);
        match self.chance.within(0, 100) {
            0..20 => Ask::Write(Kind::LeaseGrant(self.grant())),
            20..26 => Ask::Write(Kind::LeaseRevoke(LeaseRevokeRequest { id })),
            26..52 => Ask::Write(Kind::Put(PutRequest { lease: id, ..self.put() })),
            52..60 => Ask::Write(Kind::Txn(self.txn_with(id))),
            60..84 => {
                let ids = (0..self.chance.within(0, 3)).map(|_| self.lease(granted)).chain([id]).collect();
                Ask::Lease(LeaseQuestion::Renew(ids, WhenExpired::Tell))
            }
            84..94 => Ask::Lease(LeaseQuestion::Remaining(id)),
            _ => Ask::KeysOfLease(id),
        }
    }

    fn lease(&mut self, granted: &[i64]) -> i64 {
        if granted.is_empty() || self.chance.per_mille(700) {
            self.chance.within(1, IDS + 1) as i64
        } else {
            *self.chance.pick(granted)
        }
    }

    fn grant(&mut self) -> LeaseGrantRequest {
        let ttl = *self.chance.pick(&TTLS);
        let chosen = (mix(self.id) >> 1) as i64;
        let id = if self.chance.per_mille(600) { self.chance.within(1, IDS + 1) as i64 } else { chosen };
        LeaseGrantRequest { id, ttl }
    }

    /// Creates a transaction that attaches one key, and puts a second one with or without the
    /// lease.
    fn txn_with(&mut self, lease: i64) -> TxnRequest {
        let first = self.chance.within(0, self.config.keys);
        let other = *self.chance.pick(&[0, lease]);
        let ops = [(first, lease), (first + 1, other)].map(|(number, lease)| {
            let put = PutRequest { key: super::draw::key(number), lease, ..self.put() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        });
        TxnRequest { success: ops.to_vec(), ..TxnRequest::default() }
    }
}
