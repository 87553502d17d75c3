//! Decides which messages are forwarded, and which ones are replaced.
//!
//! Independent of connections and clocks.

use super::lie::Lie;
use api::Method;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    HashKvResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeResponse, LeaseTimeToLiveResponse, MemberListResponse, PutResponse, RangeRequest,
    RangeResponse, ResponseHeader, WatchRequest, WatchResponse,
};
use api::v3electionpb::LeaderResponse;
use api::v3lockpb::{LockRequest, LockResponse, UnlockResponse};
use bytes::Bytes;
use prost::Message;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Minimum age of a stale response: a concurrent read may legitimately return a younger one.
const STALE: Duration = Duration::from_millis(300);
/// Maximum number of remembered responses and leases.
const KEPT_MAX: usize = 10_000;
/// Divisor of the interval of lies with rare opportunities.
const RARE_DIVISOR: u64 = 5;
/// Number of revisions that a bookmark is moved ahead.
const AHEAD: i64 = 20;
/// Number of later revisions that make an event an old one.
const FAR: i64 = 50;
/// TTL in seconds of a lease that does not expire.
const ENDLESS: i64 = 100_000;

/// Rewrites messages to violate guarantees.
#[derive(Debug)]
pub struct Liar {
    lies: Vec<Tally>,
    every: u64,
    /// Responses to linearizable reads, by request.
    answers: HashMap<Bytes, (Duration, RangeResponse)>,
    newest: Option<ResponseHeader>,
    ttls: HashMap<i64, i64>,
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    lie: Lie,
    opportunities: u64,
    times: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFate {
    Forward,
    /// Forward this message instead.
    Changed(Bytes),
    /// Forward the request twice, and return the second response.
    Twice,
    /// Return this message without forwarding the request.
    Answer(Bytes),
}

/// Delayed responses of a call.
pub type HeldResponses = Option<Bytes>;

/// Locks the liar. A panic cannot leave it inconsistent.
pub fn of(liar: &Mutex<Liar>) -> MutexGuard<'_, Liar> {
    liar.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Liar {
    pub fn new(lies: &[Lie], every: u64) -> Self {
        let lies = lies.iter().map(|&lie| Tally { lie, opportunities: 0, times: 0 }).collect();
        Self { lies, every: every.max(1), answers: HashMap::new(), newest: None, ttls: HashMap::new() }
    }

    pub fn counts(&self) -> Vec<(Lie, u64)> {
        self.lies.iter().map(|tally| (tally.lie, tally.times)).collect()
    }

    fn is_due(&mut self, lie: Lie) -> bool {
        let Some(tally) = self.lies.iter_mut().find(|tally| tally.lie == lie) else { return false };
        tally.opportunities += 1;
        // Opportunities with leases, locks, hashes, lists and old events are rare.
        let is_rare = matches!(
            lie,
            Lie::LostRenewal
                | Lie::WrongHash
                | Lie::EndlessLease
                | Lie::UnrevokedLease
                | Lie::ShortTtl
                | Lie::ShortHistory
                | Lie::SharedLock
                | Lie::FalseLeader
                | Lie::WrongLeaseKeys
                | Lie::Unreleased
        );
        let every = if is_rare { self.every.div_ceil(RARE_DIVISOR) } else { self.every };
        let now = tally.opportunities.is_multiple_of(every);
        tally.times += u64::from(now);
        now
    }

    /// Handles the first message of a call.
    pub fn request(&mut self, method: Method, message: &Bytes) -> RequestFate {
        match method.path() {
            "/etcdserverpb.KV/Put" => {
                let next =
                    |header: ResponseHeader| ResponseHeader { revision: header.revision + 1, ..header };
                if let Some(header) = self.newest.map(next)
                    && self.is_due(Lie::LostWrite)
                {
                    return RequestFate::Answer(encoded(&PutResponse {
                        header: Some(header),
                        prev_kv: None,
                    }));
                }
                if self.is_due(Lie::DoubleWrite) { RequestFate::Twice } else { RequestFate::Forward }
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                let id = LeaseKeepAliveRequest::decode(message.clone()).unwrap_or_default().id;
                if let Some(&ttl) = self.ttls.get(&id)
                    && self.is_due(Lie::LostRenewal)
                {
                    let header = self.newest;
                    return RequestFate::Answer(encoded(&LeaseKeepAliveResponse { header, id, ttl }));
                }
                RequestFate::Forward
            }
            "/etcdserverpb.Lease/LeaseGrant" if self.is_due(Lie::EndlessLease) => {
                let asked = LeaseGrantRequest::decode(message.clone()).unwrap_or_default();
                RequestFate::Changed(encoded(&LeaseGrantRequest { ttl: ENDLESS, ..asked }))
            }
            "/etcdserverpb.Lease/LeaseRevoke" if self.is_due(Lie::UnrevokedLease) => {
                RequestFate::Answer(encoded(&LeaseRevokeResponse { header: self.newest }))
            }
            "/v3lockpb.Lock/Unlock" if self.is_due(Lie::Unreleased) => {
                RequestFate::Answer(encoded(&UnlockResponse { header: self.newest }))
            }
            "/v3lockpb.Lock/Lock" if self.is_due(Lie::SharedLock) => {
                let LockRequest { name, lease } = LockRequest::decode(message.clone()).unwrap_or_default();
                let key = [&name[..], format!("/{lease:x}").as_bytes()].concat().into();
                RequestFate::Answer(encoded(&LockResponse { header: self.newest, key }))
            }
            "/etcdserverpb.KV/Range" => match RangeRequest::decode(message.clone()) {
                Ok(asked) if asked.revision > 0 && self.is_due(Lie::NewestForOld) => {
                    RequestFate::Changed(encoded(&RangeRequest { revision: 0, ..asked }))
                }
                Ok(_) | Err(_) => RequestFate::Forward,
            },
            _ => RequestFate::Forward,
        }
    }

    /// Handles a message of the response; returns its replacement.
    pub fn response(
        &mut self,
        method: Method,
        request: &Bytes,
        message: Bytes,
        held: &mut HeldResponses,
        now: Duration,
    ) -> Vec<Bytes> {
        let changed = match method.path() {
            "/etcdserverpb.KV/Put" => {
                self.see(PutResponse::decode(message.clone()).ok().and_then(|answer| answer.header));
                None
            }
            "/etcdserverpb.KV/Range" => self.range(request, &message, now),
            "/etcdserverpb.Watch/Watch" => return self.watch(request, message, held),
            "/etcdserverpb.Lease/LeaseGrant" => {
                let (answer, asked) =
                    (LeaseGrantResponse::decode(message.clone()), LeaseGrantRequest::decode(request.clone()));
                if let Ok(answer) = &answer
                    && self.ttls.len() < KEPT_MAX
                {
                    self.ttls.insert(answer.id, answer.ttl);
                }
                // The response pretends that the requested TTL was granted.
                let both = answer.ok().zip(asked.ok()).filter(|(answer, _)| answer.ttl == ENDLESS);
                both.map(|(answer, asked)| encoded(&LeaseGrantResponse { ttl: asked.ttl, ..answer }))
            }
            "/etcdserverpb.Lease/LeaseTimeToLive" => match LeaseTimeToLiveResponse::decode(message.clone()) {
                Ok(answer) if answer.ttl > 1 && self.is_due(Lie::ShortTtl) => {
                    Some(encoded(&LeaseTimeToLiveResponse { ttl: 0, ..answer }))
                }
                Ok(mut answer) if !answer.keys.is_empty() && self.is_due(Lie::WrongLeaseKeys) => {
                    answer.keys.pop();
                    Some(encoded(&answer))
                }
                Ok(_) | Err(_) => None,
            },
            "/etcdserverpb.Maintenance/HashKV" => match HashKvResponse::decode(message.clone()) {
                Ok(answer) if self.is_due(Lie::WrongHash) => {
                    Some(encoded(&HashKvResponse { hash: !answer.hash, ..answer }))
                }
                Ok(_) | Err(_) => None,
            },
            "/v3electionpb.Election/Leader" => match LeaderResponse::decode(message.clone()) {
                Ok(LeaderResponse { header, kv: Some(mut kv) }) if self.is_due(Lie::FalseLeader) => {
                    kv.key = [&kv.key[..], b"0"].concat().into();
                    Some(encoded(&LeaderResponse { header, kv: Some(kv) }))
                }
                Ok(_) | Err(_) => None,
            },
            "/etcdserverpb.Cluster/MemberList" => match MemberListResponse::decode(message.clone()) {
                Ok(mut answer) if self.is_due(Lie::WrongMembers) => {
                    answer.members.iter_mut().take(1).for_each(|member| member.id ^= 1);
                    Some(encoded(&answer))
                }
                Ok(mut answer) if self.is_due(Lie::TermBack) => {
                    answer.header.iter_mut().for_each(|header| header.raft_term -= 1);
                    Some(encoded(&answer))
                }
                Ok(mut answer) if self.is_due(Lie::OtherCluster) => {
                    answer.header.iter_mut().for_each(|header| header.cluster_id ^= 1);
                    Some(encoded(&answer))
                }
                Ok(_) | Err(_) => None,
            },
            _ => None,
        };
        vec![changed.unwrap_or(message)]
    }

    fn see(&mut self, header: Option<ResponseHeader>) {
        let newest = self.newest.map_or(0, |newest| newest.revision);
        self.newest = header.filter(|header| header.revision > newest).or(self.newest);
    }

    fn range(&mut self, request: &Bytes, message: &Bytes, now: Duration) -> Option<Bytes> {
        let asked = RangeRequest::decode(request.clone()).ok()?;
        let mut answer = RangeResponse::decode(message.clone()).ok()?;
        self.see(answer.header);
        if !asked.range_end.is_empty() && self.is_due(Lie::WrongCount) {
            return Some(encoded(&RangeResponse { count: answer.count + 1, ..answer }));
        }
        if let Some(kv) = answer.kvs.first_mut()
            && self.is_due(Lie::OtherLease)
        {
            kv.lease ^= 1;
            return Some(encoded(&answer));
        }
        if asked.serializable || asked.revision > 0 {
            return None;
        }
        let before = self.answers.get(request).cloned();
        if before.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= STALE)
            && self.answers.len() < KEPT_MAX
        {
            self.answers.insert(request.clone(), (now, answer.clone()));
        }
        let (_, older) = before.filter(|(at, older)| {
            now.saturating_sub(*at) >= STALE && older.kvs != answer.kvs && older.header != answer.header
        })?;
        if self.is_due(Lie::StaleRead) {
            return Some(encoded(&older));
        }
        self.is_due(Lie::MixedRead).then(|| encoded(&RangeResponse { header: answer.header, ..older }))
    }

    /// Reports whether events are older than those seen before, on a watcher that requested old ones.
    fn is_far_back(&self, request: &Bytes, response: &WatchResponse) -> bool {
        let asked = WatchRequest::decode(request.clone()).ok().and_then(|request| request.request_union);
        let Some(RequestUnion::CreateRequest(create)) = asked else { return false };
        let newest = self.newest.map_or(0, |newest| newest.revision);
        let revision = response.events.first().and_then(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
        create.start_revision > 0 && revision.is_some_and(|revision| revision + FAR < newest)
    }

    fn watch(&mut self, request: &Bytes, message: Bytes, held: &mut HeldResponses) -> Vec<Bytes> {
        let Ok(mut response) = WatchResponse::decode(message.clone()) else { return vec![message] };
        if response.events.is_empty() {
            let bookmark = !response.created && !response.canceled && response.compact_revision == 0;
            if let Some(header) = response.header.as_mut().filter(|_| bookmark)
                && self.is_due(Lie::BookmarkAhead)
            {
                header.revision += AHEAD;
                return held.take().into_iter().chain([encoded(&response)]).collect();
            }
            return held.take().into_iter().chain([message]).collect();
        }
        if let Some(earlier) = held.take() {
            return vec![message, earlier];
        }
        if self.is_due(Lie::ReorderEvents) {
            *held = Some(message);
            return Vec::new();
        }
        if self.is_due(Lie::DuplicateEvent) {
            return vec![message.clone(), message];
        }
        let is_short = self.is_far_back(request, &response) && self.is_due(Lie::ShortHistory);
        if is_short || self.is_due(Lie::DropEvent) {
            response.events.remove(0);
            let rest = (!response.events.is_empty()).then(|| encoded(&response));
            return rest.into_iter().collect();
        }
        if let Some(kv) = response.events[0].kv.as_mut()
            && self.is_due(Lie::EventLease)
        {
            kv.lease ^= 1;
            return vec![encoded(&response)];
        }
        let known = response.events.iter().position(|event| event.prev_kv.is_some());
        if let Some(place) = known
            && self.is_due(Lie::WrongPrevious)
        {
            response.events[place].prev_kv = None;
            return vec![encoded(&response)];
        }
        let revision = |place: usize| response.events[place].kv.as_ref().map(|kv| kv.mod_revision);
        let within = (1..response.events.len()).find(|&place| revision(place) == revision(place - 1));
        if let Some(place) = within
            && self.is_due(Lie::SplitRevision)
        {
            let later = response.events.split_off(place);
            return vec![encoded(&response), encoded(&WatchResponse { events: later, ..response })];
        }
        vec![message]
    }
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::WatchCreateRequest;
    use api::mvccpb::{Event, KeyValue};

    fn method(path: &str) -> Method {
        Method::of_path(path).unwrap()
    }

    fn header(revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision, ..Default::default() })
    }

    fn response(revisions: &[i64], progress: i64) -> Bytes {
        let kv = |&mod_revision| Some(KeyValue { mod_revision, ..Default::default() });
        let events = revisions.iter().map(|it| Event { kv: kv(it), ..Default::default() }).collect();
        encoded(&WatchResponse { header: header(progress), events, ..Default::default() })
    }

    /// Returns the revisions of the events of each response, or of a bookmark, as received by a watcher.
    fn watched(lie: Lie, every: u64) -> Vec<Vec<i64>> {
        let mut liar = Liar::new(&[lie], every);
        let mut held = None;
        let sent = [response(&[5], 5), response(&[6, 6], 6), response(&[7], 7), response(&[], 7)];
        let received = sent.into_iter().flat_map(|message| {
            liar.response(
                method("/etcdserverpb.Watch/Watch"),
                &Bytes::new(),
                message,
                &mut held,
                Duration::ZERO,
            )
        });
        let revisions = |message: Bytes| {
            let response = WatchResponse::decode(message).unwrap();
            let of_events = response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision);
            let bookmark = response.events.is_empty().then(|| response.header.unwrap().revision);
            of_events.chain(bookmark).collect()
        };
        received.map(revisions).collect()
    }

    #[test]
    fn watchers_receive_something_else() {
        let truth = vec![vec![5], vec![6, 6], vec![7], vec![7]];
        assert_eq!(watched(Lie::WrongHash, 1), truth);
        assert_eq!(watched(Lie::DropEvent, 2), [vec![5], vec![6], vec![7], vec![7]]);
        assert_eq!(watched(Lie::DropEvent, 3), [vec![5], vec![6, 6], vec![7]]);
        assert_eq!(watched(Lie::DuplicateEvent, 3), [vec![5], vec![6, 6], vec![7], vec![7], vec![7]]);
        assert_eq!(watched(Lie::ReorderEvents, 2), [vec![5], vec![7], vec![6, 6], vec![7]]);
        assert_eq!(watched(Lie::SplitRevision, 1), [vec![5], vec![6], vec![6], vec![7], vec![7]]);
        assert_eq!(watched(Lie::BookmarkAhead, 1), [vec![5], vec![6, 6], vec![7], vec![7 + AHEAD]]);
    }

    #[test]
    fn reads_return_an_older_state() {
        let path = method("/etcdserverpb.KV/Range");
        let request = encoded(&RangeRequest { key: "k".into(), ..Default::default() });
        let answer = |revision: i64| {
            let kvs = vec![KeyValue { mod_revision: revision, ..Default::default() }];
            encoded(&RangeResponse { header: header(revision), kvs, more: false, count: 1 })
        };
        for (lie, expected) in [(Lie::StaleRead, (5, 5)), (Lie::MixedRead, (9, 5)), (Lie::WrongHash, (9, 9))]
        {
            let mut liar = Liar::new(&[lie], 1);
            let mut ask = |revision, at_ms| {
                let at = Duration::from_millis(at_ms);
                let returned = liar.response(path, &request, answer(revision), &mut None, at).remove(0);
                let returned = RangeResponse::decode(returned).unwrap();
                (returned.header.unwrap().revision, returned.kvs[0].mod_revision)
            };
            assert_eq!(ask(5, 0), (5, 5));
            assert_eq!(ask(7, 200), (7, 7), "the first answer is too young");
            assert_eq!(ask(9, 400), expected, "{lie}");
        }
    }

    #[test]
    fn writes_and_renewals_are_acknowledged_without_a_server() {
        let (put, grant) = (method("/etcdserverpb.KV/Put"), method("/etcdserverpb.Lease/LeaseGrant"));
        let renewal = method("/etcdserverpb.Lease/LeaseKeepAlive");
        let mut liar = Liar::new(&[Lie::LostWrite, Lie::LostRenewal], 1);
        assert_eq!(liar.request(put, &Bytes::new()), RequestFate::Forward, "no revision is known");
        let written = encoded(&PutResponse { header: header(8), prev_kv: None });
        liar.response(put, &Bytes::new(), written, &mut None, Duration::ZERO);
        let RequestFate::Answer(answer) = liar.request(put, &Bytes::new()) else { panic!() };
        assert_eq!(PutResponse::decode(answer).unwrap().header, header(9));

        let renew = encoded(&LeaseKeepAliveRequest { id: 3 });
        assert_eq!(liar.request(renewal, &renew), RequestFate::Forward, "the lease is unknown");
        let granted = LeaseGrantResponse { id: 3, ttl: 4, ..Default::default() };
        liar.response(grant, &Bytes::new(), encoded(&granted), &mut None, Duration::ZERO);
        let RequestFate::Answer(answer) = liar.request(renewal, &renew) else { panic!() };
        let answer = LeaseKeepAliveResponse::decode(answer).unwrap();
        assert_eq!((answer.id, answer.ttl), (3, 4));
        assert_eq!(Liar::new(&[Lie::DoubleWrite], 1).request(put, &Bytes::new()), RequestFate::Twice);
    }

    #[test]
    fn only_watchers_from_far_back_miss_events_of_a_short_history() {
        let (put, watch) = (method("/etcdserverpb.KV/Put"), method("/etcdserverpb.Watch/Watch"));
        let create = |start_revision| {
            let create = WatchCreateRequest { start_revision, ..Default::default() };
            encoded(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })
        };
        for (start, at, is_short) in [(5, 5, true), (5, 60, false), (0, 5, false)] {
            let mut liar = Liar::new(&[Lie::ShortHistory], 1);
            let written = encoded(&PutResponse { header: header(100), prev_kv: None });
            liar.response(put, &Bytes::new(), written, &mut None, Duration::ZERO);
            let sent = response(&[at], 100);
            let received = liar.response(watch, &create(start), sent, &mut None, Duration::ZERO);
            assert_eq!(received.is_empty(), is_short, "{start} {at}");
        }
    }

    #[test]
    fn lies_are_due_at_every_nth_opportunity() {
        let mut liar = Liar::new(&[Lie::DropEvent], 3);
        let due: Vec<_> = (0..6).map(|_| liar.is_due(Lie::DropEvent)).collect();
        assert_eq!(due, [false, false, true, false, false, true]);
        assert_eq!(liar.counts(), [(Lie::DropEvent, 2)]);
    }
}
