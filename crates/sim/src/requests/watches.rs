//! Watch clients: each has one stream to one member, creates and cancels watchers on it, reads at its own
//! pace, and goes on at another member when its stream breaks.
//!
//! * Create requests are answered in order. No response of a watcher comes before the answer, none after its
//!   end.
//! * A watcher that goes on elsewhere asks for the first revision that it has not seen: nothing is missed or
//!   repeated.

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

/// Watchers of one client. More find nothing that these do not.
const WATCHERS_MAX: usize = 5;

/// The watch id of answers that concern no watcher or all of them.
const NO_WATCHER: i64 = -1;

#[derive(Default)]
pub(crate) struct WatchClient {
    /// The member and the run of it that the stream leads to.
    pub connection: Option<(u64, u64)>,
    /// By a number of the client's own.
    watchers: BTreeMap<u64, WatcherModel>,
    created: u64,
    /// Create requests without an answer, oldest first.
    creating: VecDeque<u64>,
    /// Watchers by their ids on this stream.
    live: BTreeMap<i64, u64>,
    /// Ids whose end was requested.
    cancelling: Vec<i64>,
}

impl WatchClient {
    /// A stream was opened: what was watched on the one before goes on.
    pub fn connected(&mut self, member: u64, boot: u64) -> Vec<WatchRequest> {
        assert!(self.connection.is_none(), "a client has one stream");
        self.connection = Some((member, boot));
        let numbers: Vec<u64> = self.watchers.keys().copied().collect();
        numbers.into_iter().map(|number| self.create(number)).collect()
    }

    /// The stream broke, or was closed.
    pub fn disconnected(&mut self) {
        self.connection = None;
        self.creating.clear();
        self.live.clear();
        self.cancelling.clear();
        self.watchers.values_mut().for_each(WatcherModel::disconnected);
    }

    /// What the client asks for next. `newest` is the newest revision that any client knows.
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

    /// Takes a response. Returns what the client requests because of it.
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

    /// A watcher came to its end: as requested, or because what it needs is compacted. Then the client begins
    /// again with what is left.
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

    /// The first watcher that has not received everything up to the oracle's revision.
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
