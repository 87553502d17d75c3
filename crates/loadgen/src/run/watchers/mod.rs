//! The watch streams of a thread, and the tracking of their events.
//!
//! ```text
//!   put workers ──sent, acknowledged──▶ Ledger ◀──how many are due, since when── watch streams ──▶ tallies
//! ```
//!
//! * Watchers are created before the run, sequentially on each stream. Those that read history are created
//!   at the start of the run.
//! * A watcher starts after the latest revision before the run, so it receives exactly the run's events.
//! * Every acknowledged put is an event for each watcher of its key. A missing event is a failure of the
//!   run, as is a duplicate, an event out of order, or one without a put. If the run is stopped first, a
//!   missing event counts with its waiting time.
//! * The latency of an event counts from the same time as that of its put: the intended send time in an open
//!   loop.

mod ledger; // record of the puts

pub use ledger::{Awaits, Ledger, OpenWatchers};

use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::client::failure::{CallFailure, Code};
use crate::client::link;
use crate::client::watch::ClientWatchStream;
use crate::run::recorder::{FailedCalls, Start, Tally};
use crate::run::results::ThreadTallies;
use crate::run::schedule::Schedule;
use crate::stats::progress::{Control, WorkerCounters};
use crate::stats::stillness::Stillness;
use crate::workload::position_of;
use api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// Indexes of the tallies: creations of watchers, events since the start of their put, and events since the
/// response of their put.
pub const CREATIONS: usize = 0;
pub const EVENTS: usize = 1;
pub const SINCE_ANSWER: usize = 2;

/// Interval of checking whether all events have arrived. The run time ends at the last event, not at the
/// check.
const LOOK: Duration = Duration::from_millis(5);

/// Streams and settings of a thread.
pub struct WatcherSetup {
    pub watching: OpenWatchers,
    /// Numbers of the streams of this thread.
    pub streams: Vec<usize>,
    pub endpoints: Vec<Endpoint>,
    pub conns: usize,
    /// Maximum wait for the next event, once all puts are complete.
    pub patience: Duration,
    /// True if the load stops when the events have arrived.
    pub ends_load: bool,
    pub ledger: Arc<Ledger>,
    pub control: Arc<Control>,
    pub counters: Arc<WorkerCounters>,
    pub by_endpoint: Arc<[WorkerCounters]>,
}

/// The watch streams of a thread.
pub struct Watchers {
    tasks: LocalSet,
    streams: Vec<WatcherStream>,
    account: Rc<Account>,
}

struct WatcherStream {
    channel: ClientWatchStream,
    endpoint: usize,
    /// Indexes of its watchers in the thread.
    watchers: std::ops::Range<usize>,
    /// Watchers by the id assigned by the server.
    ids: HashMap<i64, usize>,
    created: usize,
    asked_at: Instant,
}

/// Shared state of the streams of a thread.
struct Account {
    setup: WatcherSetup,
    /// Watchers start after this revision.
    revision: i64,
    watchers: RefCell<Vec<StreamWatcher>>,
    tallies: RefCell<Vec<Tally>>,
    start: Cell<Start>,
    last_at: Cell<Instant>,
    /// Last time at which a put was observed to be incomplete.
    sending_at: Cell<Instant>,
}

#[derive(Clone, Debug)]
struct StreamWatcher {
    /// Index of its key in the list.
    key: usize,
    received: u64,
    revision: i64,
}

impl Watchers {
    /// Opens the streams, and creates the watchers unless they read history.
    pub async fn open(setup: WatcherSetup) -> Result<Self, String> {
        let first = setup.endpoints.first().ok_or("no endpoint given")?;
        let revision = async { admin::AdminClient::connect(first).await?.revision().await };
        let revision = revision.await.map_err(|error| error.to_string())?;
        let OpenWatchers { per_stream, ref keys, awaits, .. } = setup.watching;
        let watchers = setup.streams.iter().flat_map(|stream| stream * per_stream..(stream + 1) * per_stream);
        let watcher = |number: usize| StreamWatcher { key: number % keys.len(), received: 0, revision: 0 };
        let watchers: Vec<_> = watchers.map(watcher).collect();
        let now = Instant::now();
        let account = Rc::new(Account {
            revision,
            watchers: RefCell::new(watchers),
            tallies: RefCell::new(vec![Tally::new(); SINCE_ANSWER + 1]),
            start: Cell::new(Start::new(now)),
            last_at: Cell::new(now),
            sending_at: Cell::new(now),
            setup,
        });
        let tasks = LocalSet::new();
        let opening = tokio::time::timeout(account.setup.patience, account.clone().open_streams());
        let opened = tasks.run_until(opening).await;
        let opened = opened.map_err(|_| "not all watch streams could be opened in time".to_owned())?;
        let mut streams = opened.map_err(|failure| failure.to_string())?;
        if !matches!(awaits, Awaits::History { .. }) {
            streams = tasks.run_until(account.clone().create_all(streams)).await?;
        }
        Ok(Self { tasks, streams, account })
    }

    /// Receives until all events have arrived, none has for too long, or the run is stopped.
    pub async fn run(self, schedule: &Schedule, start: Instant) -> ThreadTallies {
        let Self { tasks, streams, account } = self;
        account.start.set(Start::new(start));
        account.last_at.set(start);
        account.sending_at.set(start);
        let receiving = async {
            for stream in streams {
                tokio::task::spawn_local(account.clone().receive(stream));
            }
            let mut stillness = Stillness::new(LOOK);
            while !account.is_over(schedule) {
                tokio::time::sleep(LOOK).await;
                if let Some(gap) = stillness.look() {
                    account.tallies.borrow_mut()[EVENTS].stood_still(gap);
                }
            }
        };
        tasks.run_until(receiving).await;
        if account.setup.ends_load {
            schedule.close();
        }
        account.count_missing(schedule);
        (account.tallies.take(), account.last_at.get())
    }
}

impl Account {
    /// Opens the streams. Stream n uses connection object n modulo their number, and endpoints are assigned
    /// round-robin.
    async fn open_streams(self: Rc<Self>) -> Result<Vec<WatcherStream>, CallFailure> {
        let WatcherSetup { watching, streams: numbers, endpoints, conns, counters, .. } = &self.setup;
        let mut connections = HashMap::new();
        let mut streams = Vec::new();
        for (nth, number) in numbers.iter().enumerate() {
            let (object, endpoint) = (number % conns, number / conns % endpoints.len());
            let to = &endpoints[endpoint];
            let connection = match connections.entry((object, endpoint)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let opened = link::open(to.clone(), counters.clone()).await;
                    let (sender, connection) = opened
                        .map_err(|error| CallFailure::unavailable(format!("endpoint {to}: {error}")))?;
                    // A failed connection surfaces as an error of its streams.
                    tokio::task::spawn_local(connection);
                    place.insert(sender)
                }
            };
            streams.push(WatcherStream {
                channel: ClientWatchStream::open(to, connection).await?,
                endpoint,
                watchers: nth * watching.per_stream..(nth + 1) * watching.per_stream,
                ids: HashMap::new(),
                created: 0,
                asked_at: Instant::now(),
            });
        }
        Ok(streams)
    }

    async fn create_all(self: Rc<Self>, streams: Vec<WatcherStream>) -> Result<Vec<WatcherStream>, String> {
        let mut tasks = JoinSet::new();
        for mut stream in streams {
            let account = self.clone();
            tasks.spawn_local(async move {
                account.create_next(&mut stream)?;
                while stream.created < stream.watchers.len() {
                    // Timeout per creation: there may be a million.
                    let response = tokio::time::timeout(account.setup.patience, stream.channel.next()).await;
                    let late =
                        |_| CallFailure::new(Code::DEADLINE_EXCEEDED, "a watcher was not created in time");
                    account.take(&mut stream, &response.map_err(late)??)?;
                }
                Ok::<_, CallFailure>(stream)
            });
        }
        let created = tasks.join_all().await;
        created.into_iter().collect::<Result<_, _>>().map_err(|failure| failure.to_string())
    }

    /// Receives the events of a stream, until it fails or the run stops.
    async fn receive(self: Rc<Self>, mut stream: WatcherStream) {
        let mut read = async || {
            self.create_next(&mut stream)?;
            loop {
                let response = stream.channel.next().await?;
                self.take(&mut stream, &response)?;
                // A busy stream must not starve the remaining ones.
                tokio::task::consume_budget().await;
            }
        };
        let failed: Result<std::convert::Infallible, CallFailure> = read().await;
        let Err(failure) = failed;
        self.tallies.borrow_mut()[EVENTS].failed(&failure);
        self.counters(stream.endpoint).iter().for_each(|it| it.add_failed(failure.code.0));
    }

    fn counters(&self, endpoint: usize) -> [&WorkerCounters; 2] {
        [&self.setup.counters, &self.setup.by_endpoint[endpoint]]
    }

    /// Requests the next watcher of a stream, if any.
    fn create_next(&self, stream: &mut WatcherStream) -> Result<(), CallFailure> {
        let Some(number) = stream.watchers.clone().nth(stream.created) else { return Ok(()) };
        let OpenWatchers { keys, prev_kv, awaits, .. } = &self.setup.watching;
        let start_revision = match awaits {
            Awaits::History { revision, .. } => *revision,
            Awaits::Puts | Awaits::Nothing => self.revision + 1,
        };
        let key = keys[self.watchers.borrow()[number].key].clone();
        stream.asked_at = Instant::now();
        let request = WatchCreateRequest { key, start_revision, prev_kv: *prev_kv, ..Default::default() };
        stream.channel.create(request)
    }

    fn take(&self, stream: &mut WatcherStream, response: &WatchResponse) -> Result<(), CallFailure> {
        let now = Instant::now();
        if response.canceled {
            let reason = &response.cancel_reason;
            let compacted = response.compact_revision;
            return Err(CallFailure::protocol(format!(
                "watcher canceled: {reason} (compacted: {compacted})"
            )));
        }
        if response.created {
            let number = stream.watchers.start + stream.created;
            stream.ids.insert(response.watch_id, number);
            stream.created += 1;
            let sample = self.start.get().sample(stream.asked_at, stream.asked_at, now, 0);
            self.tallies.borrow_mut()[CREATIONS].record(&sample);
            self.create_next(stream)?;
        }
        if response.events.is_empty() {
            return Ok(());
        }
        let unknown =
            || CallFailure::protocol(format!("events of the unknown watcher {}", response.watch_id));
        let number = *stream.ids.get(&response.watch_id).ok_or_else(unknown)?;
        self.last_at.set(now);
        self.events(number, stream, response, now);
        Ok(())
    }

    fn events(&self, number: usize, stream: &WatcherStream, response: &WatchResponse, now: Instant) {
        let counters = self.counters(stream.endpoint);
        let (start, mut tallies) = (self.start.get(), self.tallies.borrow_mut());
        let watcher = &mut self.watchers.borrow_mut()[number];
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            let put = match self.setup.watching.awaits {
                Awaits::Puts => self.setup.ledger.put(position_of(&kv.value)),
                Awaits::History { .. } => Some((stream.asked_at, None)),
                Awaits::Nothing => None,
            };
            let expected = put.filter(|_| kv.mod_revision > watcher.revision);
            let Some((since, answered)) = expected else {
                let text =
                    format!("event of revision {}: twice, out of order, or of no put", kv.mod_revision);
                let failure = CallFailure::protocol(text);
                tallies[EVENTS].failed(&failure);
                counters.iter().for_each(|it| it.add_failed(failure.code.0));
                continue;
            };
            watcher.revision = kv.mod_revision;
            watcher.received += 1;
            let sample = start.sample(since, since, now, kv.value.len() as u64);
            tallies[EVENTS].record(&sample);
            counters.iter().for_each(|it| it.add_answered(sample.latency.as_nanos() as u64));
            if self.setup.watching.since_answer {
                // An event that arrived before the response counts as zero.
                let since = answered.map_or(now, |answered| answered.min(now));
                tallies[SINCE_ANSWER].record(&start.sample(since, since, now, 0));
            }
        }
    }

    /// Returns the minimum and maximum number of events that a watcher should have received.
    fn due(&self, watcher: &StreamWatcher) -> (u64, u64) {
        let ledger = &self.setup.ledger;
        match self.setup.watching.awaits {
            Awaits::Nothing => (0, 0),
            Awaits::History { events, .. } => (events, u64::MAX),
            Awaits::Puts => {
                let (acknowledged, failed) = ledger.ended_puts(watcher.key);
                (acknowledged, acknowledged + failed)
            }
        }
    }

    fn is_over(&self, schedule: &Schedule) -> bool {
        let WatcherSetup { control, ledger, watching, patience, .. } = &self.setup;
        let awaits_history = matches!(watching.awaits, Awaits::History { .. });
        if control.is_stopped() || awaits_history && schedule.is_over(Instant::now()) {
            return true;
        }
        if !awaits_history && ledger.is_loading() {
            self.sending_at.set(Instant::now());
            return false;
        }
        let complete =
            || self.watchers.borrow().iter().all(|watcher| watcher.received >= self.due(watcher).0);
        self.last_at.get().max(self.sending_at.get()).elapsed() > *patience || complete()
    }

    /// Counts the last `lost` events of a watcher as awaited until now: as failed, or as unanswered if the
    /// run was stopped. `puts` caches the ledger.
    fn count_awaited(
        &self,
        watcher: &StreamWatcher,
        lost: u64,
        puts: &mut HashMap<usize, Vec<Instant>>,
        events: &mut Tally,
    ) {
        let (start, now, ledger) = (self.start.get(), Instant::now(), &self.setup.ledger);
        let is_stopped = self.setup.control.is_stopped();
        let text = format!("no event within {:?} after the last one", self.setup.patience);
        let failure = CallFailure::new(Code::DEADLINE_EXCEEDED, text);
        let mut count = |since: Instant| match is_stopped {
            true => events.unanswered(0, &start.wait(since, now)),
            // A call that failed by a time limit counts with its wait.
            false => events.failed_at(0, &failure, &start.wait(since, now), FailedCalls::Apart),
        };
        match self.setup.watching.awaits {
            Awaits::Nothing => {}
            Awaits::History { .. } => (0..lost).for_each(|_| count(start.at())),
            Awaits::Puts => {
                let since = puts.entry(watcher.key).or_insert_with(|| ledger.acknowledged_puts(watcher.key));
                let first = since.len().saturating_sub(usize::try_from(lost).unwrap_or(usize::MAX));
                since[first..].iter().for_each(|since| count(*since));
            }
        }
    }

    /// Counts missing events with their waits, and events without a put, as failures.
    fn count_missing(&self, schedule: &Schedule) {
        let WatcherSetup { control, watching, .. } = &self.setup;
        let cut = matches!(watching.awaits, Awaits::History { .. }) && schedule.is_over(Instant::now());
        let mut surplus = 0;
        let events = &mut self.tallies.borrow_mut()[EVENTS];
        let mut awaited = HashMap::new();
        for watcher in self.watchers.borrow().iter() {
            let (least, most) = self.due(watcher);
            let lost = least.saturating_sub(watcher.received);
            if lost > 0 && (control.is_stopped() || !cut) {
                self.count_awaited(watcher, lost, &mut awaited, events);
            }
            surplus += watcher.received.saturating_sub(most);
        }
        if surplus > 0 {
            events.failed_times(&CallFailure::protocol("more events than puts"), surplus);
        }
    }
}
