//! Watch clients: each has a stream to one member, creates and cancels watchers on it, reads at its
//! own pace, and reconnects to another member when the stream breaks.
//!
//! * Create requests are confirmed in order. A watcher sends no response before its confirmation or
//!   after its cancellation.
//! * After a reconnect, a watcher starts at the first revision that it has not received, so that
//!   events are neither lost nor repeated.

use std::collections::{BTreeMap, VecDeque};

use api::etcdserverpb::watch_create_request::FilterType;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

use super::draw::neighbours;
use crate::chance::Chance;
use crate::count::{RunReport, Statistic};
use crate::oracle::{Breach, Interest, OracleView, WatcherModel};

/// Maximum number of watchers per client. More would not find additional bugs.
const WATCHERS_MAX: usize = 5;

/// Watch id of responses that apply to no watcher or to all of them.
const NO_WATCHER: i64 = -1;

#[derive(Default)]
pub(crate) struct WatchClient {
    /// Member of the stream, and its run.
    pub connection: Option<(u64, u64)>,
    /// Watchers by client-assigned number.
    watchers: BTreeMap<u64, WatcherModel>,
    created: u64,
    /// Pending create requests, oldest first.
    creating: VecDeque<u64>,
    /// Watchers by their ids on this stream.
    live: BTreeMap<i64, u64>,
    cancelling: Vec<i64>,
}

impl WatchClient {
    /// Handles a new stream: re-creates the watchers of the previous one.
    pub fn connected(&mut self, member: u64, boot: u64) -> Vec<WatchRequest> {
        assert!(self.connection.is_none(), "a client has one stream");
        self.connection = Some((member, boot));
        let numbers: Vec<u64> = self.watchers.keys().copied().collect();
        numbers.into_iter().map(|number| self.create(number)).collect()
    }

    pub fn disconnected(&mut self) {
        self.connection = None;
        self.creating.clear();
        self.live.clear();
        self.cancelling.clear();
        self.watchers.values_mut().for_each(WatcherModel::disconnected);
    }

    /// Draws the next request. `newest` is the latest revision known to any client.
    pub fn draw(&mut self, keys: u64, newest: i64, chance: &mut Chance) -> WatchRequest {
        let ends = |id: &&i64| !self.cancelling.contains(id);
        let live: Vec<i64> = self.live.keys().filter(ends).copied().collect();
        match chance.within(0, 10) {
            0..5 if self.watchers.len() < WATCHERS_MAX => {
                self.created += 1;
                self.watchers.insert(self.created, new_watcher(keys, newest, chance));
                self.create(self.created)
            }
            0..7 if !live.is_empty() => {
                let watch_id = *chance.pick(&live);
                self.cancelling.push(watch_id);
                request(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }))
            }
            _ => request(RequestUnion::ProgressRequest(WatchProgressRequest {})),
        }
    }

    fn create(&mut self, number: u64) -> WatchRequest {
        self.creating.push_back(number);
        let WatcherModel { interest, next, .. } = &self.watchers[&number];
        let filter = |kept: bool, filter: FilterType| (!kept).then_some(filter as i32);
        let filters =
            [filter(interest.puts, FilterType::Noput), filter(interest.deletes, FilterType::Nodelete)];
        request(RequestUnion::CreateRequest(WatchCreateRequest {
            key: interest.key.clone(),
            range_end: interest.range_end.clone(),
            start_revision: *next,
            filters: filters.into_iter().flatten().collect(),
            prev_kv: interest.previous,
            fragment: number.is_multiple_of(2),
            progress_notify: number.is_multiple_of(3),
            watch_id: 0,
        }))
    }

    /// Handles a response. Returns requests that it triggers.
    pub fn receive(
        &mut self,
        response: WatchResponse,
        view: OracleView<'_>,
        report: &mut RunReport,
    ) -> Result<Option<WatchRequest>, Breach> {
        let (id, revision) =
            (response.watch_id, response.header.as_ref().map_or(0, |header| header.revision));
        if response.created {
            let number = self.creating.pop_front().ok_or("a watcher that no client created")?;
            if response.canceled || self.live.insert(id, number).is_some() {
                return Err(format!("a watcher was refused: {response:?}").into());
            }
            self.watcher(number).created(revision, view)?;
            return Ok(None);
        }
        if id == NO_WATCHER && !response.canceled && response.events.is_empty() {
            report.add(Statistic::WatchProgress, 1);
            if self.live.is_empty() {
                return Err("progress of a stream without watchers".into());
            }
            let numbers: Vec<u64> = self.live.values().copied().collect();
            numbers.into_iter().try_for_each(|number| self.watcher(number).progress(revision, view))?;
            return Ok(None);
        }
        let number = *self.live.get(&id).ok_or_else(|| format!("of no watcher: {response:?}"))?;
        if response.canceled {
            return self.ended(id, number, &response, view, report);
        }
        if response.events.is_empty() {
            report.add(Statistic::WatchProgress, 1);
            self.watcher(number).progress(revision, view)?;
            return Ok(None);
        }
        let events = self.watcher(number).events(response, view)?;
        report.add(Statistic::WatchEvents, events);
        Ok(None)
    }

    /// Handles a canceled watcher: as requested, or because its next revision is compacted. In that
    /// case the client re-creates it at the oldest available revision.
    fn ended(
        &mut self,
        id: i64,
        number: u64,
        response: &WatchResponse,
        view: OracleView<'_>,
        report: &mut RunReport,
    ) -> Result<Option<WatchRequest>, Breach> {
        if response.compact_revision > 0 {
            report.add(Statistic::WatchesCompacted, 1);
            self.watcher(number).compacted(response.compact_revision, view)?;
            if self.cancelling.contains(&id) {
                return Ok(None); // The answer to the request follows.
            }
            self.live.remove(&id);
            return Ok(Some(self.create(number)));
        }
        let requested = self.cancelling.iter().position(|cancelling| *cancelling == id);
        let Some(at) = requested else {
            return Err(format!("a watcher was cancelled: {response:?}").into());
        };
        self.cancelling.swap_remove(at);
        self.live.remove(&id);
        self.watchers.remove(&number);
        Ok(None)
    }

    fn watcher(&mut self, number: u64) -> &mut WatcherModel {
        self.watchers.get_mut(&number).expect("a live watcher is known")
    }

    /// Returns the first watcher that has not received all events up to the oracle's revision.
    pub fn lacking(&self, view: OracleView<'_>) -> Option<String> {
        let lacks = |watcher: &&WatcherModel| watcher.lacks(view.model, view.model.revision);
        let lacking = self.watchers.values().find(lacks)?;
        Some(format!("{:?} on {:?}, {:?} live", lacking, self.connection, self.live))
    }
}

fn request(union: RequestUnion) -> WatchRequest {
    WatchRequest { request_union: Some(union) }
}

fn new_watcher(keys: u64, newest: i64, chance: &mut Chance) -> WatcherModel {
    let (key, range_end) = neighbours(keys, chance);
    let (puts, deletes) = *chance.pick(&[(true, true), (true, true), (true, false), (false, true)]);
    let interest = Interest { key, range_end, puts, deletes, previous: chance.per_mille(500) };
    let next = match chance.within(0, 4) {
        0 | 1 => 0,
        2 => (newest - chance.within(0, 60) as i64).max(0),
        _ => newest + chance.within(0, 5) as i64,
    };
    WatcherModel::new(interest, next)
}
