//! The archiver: writes events of a watch on all keys to segments, and creates a base periodically.
//!
//! * A failed connection is replaced by one to the next endpoint, without a limit of attempts. Received
//!   revisions are written before that: the cluster may never return, or return with an older state.
//! * Failed writes are retried. No events are received during a write.
//! * A segment is first closed, and written when the TTLs of its leases are known or the next segment is due.
//!   TTLs that arrive later are added to a later segment; if there is none, a base is due.
//! * At most one base is created at a time. It continues when the connection that started it fails.
//! * `head.json` contains the time up to which the archive is complete.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::WatchResponse;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::base::{self, BaseError, BaseResult};
use super::documents::{self, DocumentError, FORMAT, Identity, ReachedRevision};
use super::inventory::{HEAD, IDENTITY, Inventory, Segment, now_ms};
use super::metrics::ArchiveMetrics;
use super::place::{ArchivePlace, PlaceError};
use super::seam::{self, Pairs, Seam, SeamError};
use super::segment::{Record, SegmentWriter};
use super::ttls::Ttls;
use crate::live_import::{
    self, EventRevisions, Events, EventsError, Head, News, Session, SourceRefusal, WholeRevision,
    cluster_name, first_signal, say,
};
use crate::operator::OperatorClient;
use process::log::causes;
use process::shutdown::{self, Stop, Stopper};
use state_machine::Lineage;

/// Delay before reconnecting, and before retrying a write.
const PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Delay before a failed base is retried.
const BASE_PAUSE: Duration = Duration::from_secs(30);
/// Minimum wait for the TTLs of a segment; for the last segment, the timeout.
const TTLS_TIMEOUT: Duration = Duration::from_secs(2);
/// Clock steps up to this size are not reported.
const CLOCK_TOLERANCE_MS: i64 = 10_000;

/// Intervals and sizes of objects, and their retention.
#[derive(Clone, Copy, Debug)]
pub struct FollowOptions {
    pub base_every: Duration,
    pub segment_every: Duration,
    pub segment_bytes: usize,
    pub keep: Option<Duration>,
}

/// Permanent failure of the archiver.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Events(#[from] EventsError),
    #[error(transparent)]
    Seam(#[from] SeamError),
    #[error("the endpoints belong to cluster {found}, the archive to cluster {wanted}")]
    OtherCluster { found: String, wanted: String },
    #[error(
        "the cluster is at revision {head}, and the archive at revision {revision}: the cluster was replaced by an \
         older state. Archive it to another place"
    )]
    Older { head: i64, revision: i64 },
    #[error(transparent)]
    Refused(#[from] SourceRefusal),
}

impl FollowError {
    /// Reports whether a storage operation failed temporarily. Invalid contents do not count.
    fn is_of_place(&self) -> bool {
        matches!(
            self,
            FollowError::Place(error)
            | FollowError::Document(DocumentError::Place(error))
            | FollowError::Seam(SeamError::Place(error)) if error.may_pass()
        )
    }
}

type ArchiveBroken = live_import::Broken<FollowError>;

pub struct Archiver {
    client: OperatorClient,
    place: Arc<ArchivePlace>,
    options: FollowOptions,
    signalled: watch::Receiver<bool>,
    metrics: Arc<ArchiveMetrics>,
    inventory: Inventory,
    /// Cluster ID; None until an empty archive is first connected.
    cluster: Option<String>,
    segment: SegmentWriter,
    segment_since: Instant,
    /// Previous segment, closed but not written.
    closed: Option<SegmentWriter>,
    seam: Seam,
    /// Last received revision; 0 if a base is needed first.
    last: i64,
    /// Time of `last`. Times never decrease.
    last_ms: i64,
    ttls: Ttls,
    /// Auth revision covered by the latest base; 0 if unknown, or if TTLs are missing from all segments.
    auth_revision: u64,
    base: Option<JoinHandle<Result<BaseResult, BaseError>>>,
    base_after: Instant,
    /// Earliest start of the next base after a failure.
    base_pause: Instant,
    removal: Option<JoinHandle<Result<Vec<String>, PlaceError>>>,
    /// Stops `base` and `removal`.
    stop: (Stopper, Stop),
    whole_at: Instant,
    said: Option<Instant>,
}

impl Archiver {
    /// Loads the state of the archive.
    pub fn open(
        client: OperatorClient,
        place: ArchivePlace,
        options: FollowOptions,
        signalled: watch::Receiver<bool>,
        metrics: Arc<ArchiveMetrics>,
    ) -> Result<Archiver, FollowError> {
        let (identity, reached) = (documents::identity(&place)?, documents::reached(&place)?);
        let inventory = place.inventory()?;
        let now = Instant::now();
        let base_age = inventory.bases.last().map(|base| now_ms().saturating_sub(base.time_ms));
        let left = base_age.map_or(Duration::ZERO, |age| {
            options.base_every.saturating_sub(Duration::from_millis(age.max(0).cast_unsigned()))
        });
        let last = inventory.resume().unwrap_or(0);
        metrics.revision.set(last);
        // A segment after `head.json` may lack TTLs.
        let end = inventory.segments.iter().map(|segment| segment.last).max().unwrap_or(0);
        let whole = reached.filter(|reached| reached.revision >= end);
        Ok(Archiver {
            client,
            options,
            signalled,
            metrics,
            cluster: identity.map(|identity| identity.cluster_id),
            segment: SegmentWriter::new(),
            segment_since: now,
            closed: None,
            seam: Seam::load(&place, &inventory, last)?,
            last,
            last_ms: reached.map_or(0, |reached| reached.time_ms),
            ttls: Ttls::default(),
            auth_revision: whole.map_or(0, |reached| reached.auth_revision),
            base: None,
            base_after: now + left,
            base_pause: now,
            removal: None,
            stop: shutdown::stop(),
            whole_at: now,
            said: None,
            inventory,
            place: Arc::new(place),
        })
    }

    /// Runs until a signal. Everything received by then is archived.
    pub async fn run(mut self) -> Result<i64, FollowError> {
        let ended = self.follow().await;
        // Await both tasks while the runtime is alive, so that they do not leave partial objects.
        self.stop.0.stop();
        if self.base.is_some() {
            let _unused = finished(&mut self.base).await;
        }
        if self.removal.is_some() {
            let _unused = finished(&mut self.removal).await;
        }
        ended
    }

    async fn follow(&mut self) -> Result<i64, FollowError> {
        let mut signalled = self.signalled.clone();
        loop {
            let ended = match self.connection().await {
                Err(ArchiveBroken::Fatal(error)) if error.is_of_place() && !*signalled.borrow() => {
                    Err(ArchiveBroken::Lost(causes(&error)))
                }
                ended => ended,
            };
            let is_writable = !matches!(ended, Err(ArchiveBroken::Fatal(FollowError::Place(_))));
            self.ttls.end();
            if is_writable && self.is_open() && self.seam.is_confirmed(self.last) {
                self.write(None).await?;
            }
            match ended {
                Ok(()) => return Ok(self.last),
                Err(ArchiveBroken::Fatal(error)) => return Err(error),
                Err(ArchiveBroken::Lost(reason)) => self.fail(&reason),
            }
            self.client.turn_away();
            tokio::select! {
                () = first_signal(&mut signalled) => {
                    self.write(None).await?;
                    return Ok(self.last);
                }
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    fn fail(&mut self, reason: &str) {
        self.metrics.failures.inc();
        self.note_behind();
        if self.said.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.said = Some(Instant::now());
            say(&format!("revision {}: {reason}", self.last));
        }
    }

    /// Follows the cluster over one connection until a signal.
    async fn connection(&mut self) -> Result<(), ArchiveBroken> {
        let session = Session::open(&mut self.client).await?;
        let head = session.head().await?;
        self.metrics.head.set(head.revision);
        self.check(head)?;
        self.follow_lineage(session.lineage().await?).await?;
        let mut signalled = self.signalled.clone();
        if self.last > 0 && self.seam.is_blank(self.last) {
            self.compare_pairs(&session).await?;
        }
        while self.last == 0 {
            self.observe(session.head().await?, &session).await?;
            tokio::select! {
                () = first_signal(&mut signalled) => return Ok(()),
                made = finished(&mut self.base) => self.take_base(made)?,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        let mut events = Events::begin(&session, self.seam.begin(self.last)).await?;
        let mut revisions = EventRevisions::default();
        say(&format!("revision {}: archiving {}", self.last, self.client.endpoint()));
        self.said = None;
        loop {
            tokio::select! {
                biased;
                () = first_signal(&mut signalled) => return Ok(self.write(Some(&session)).await?),
                made = finished(&mut self.base) => self.take_base(made)?,
                removed = finished(&mut self.removal) => self.take_removed(removed),
                () = self.ttls.answered() => {
                    if self.closed.is_some() {
                        self.finish(Some(&session)).await?;
                    }
                }
                news = events.next() => match news? {
                    News::Head(head) => {
                        let confirmed = if self.seam.is_confirmed(self.last) { self.last } else { 0 };
                        events.check(head, confirmed)?;
                        self.observe(head, &session).await?;
                    }
                    News::Events(response) => self.take(response, &mut revisions, &session).await?,
                    News::Compacted(compacted) if compacted <= self.last => {
                        self.seam.forget_up_to(compacted);
                        if self.seam.is_blank(self.last) {
                            self.compare_pairs(&session).await?;
                        }
                        revisions = EventRevisions::default();
                        events = Events::begin(&session, self.seam.begin(self.last)).await?;
                    }
                    News::Compacted(compacted) => return Err(self.skip(compacted, &session).await?),
                },
            }
        }
    }

    /// Accepts a source whose history contains that of the archive. Starts a new segment if the lineage
    /// changed, because a segment has one lineage.
    async fn follow_lineage(&mut self, found: Lineage) -> Result<(), FollowError> {
        self.seam.check(&found, self.archived())?;
        let lineage = self.seam.lineage.followed_by(&found, self.last);
        if lineage != self.seam.lineage {
            if self.segment.span().is_some() {
                self.write(None).await?;
            }
            self.seam.lineage = lineage;
        }
        Ok(())
    }

    /// Returns the last received or archived revision.
    fn archived(&self) -> i64 {
        self.last.max(self.inventory.end())
    }

    /// Compares the pairs that remain after a compaction. Returns an error that skips the lost revisions if
    /// there are no pairs to compare.
    async fn compare_pairs(&mut self, session: &Session) -> Result<(), ArchiveBroken> {
        self.write(None).await?;
        self.list()?;
        let compared = seam::compare_pairs(&self.place, &self.inventory, self.last, session).await?;
        match compared.map_err(FollowError::from)? {
            Pairs::Equal => Ok(()),
            Pairs::Unknown => Err(self.skip(self.last, session).await?),
        }
    }

    /// Checks that the cluster is the archived one, and not older. A new archive adopts the cluster ID.
    fn check(&mut self, head: Head) -> Result<(), FollowError> {
        let found = cluster_name(head);
        if self.cluster.is_none() {
            let identity = Identity { format: FORMAT, cluster_id: found.clone() };
            let bytes = serde_json::to_vec(&identity).expect("text and numbers are JSON");
            // A concurrent archiver may have written it first.
            let first = tokio::task::block_in_place(|| {
                self.place.put(IDENTITY, &bytes)?;
                documents::identity(&self.place)
            })?;
            self.cluster = first.map(|identity| identity.cluster_id);
        }
        if let Some(wanted) = self.cluster.clone().filter(|wanted| *wanted != found) {
            return Err(FollowError::OtherCluster { found, wanted });
        }
        let revision = self.archived();
        match head.revision < revision {
            true => Err(FollowError::Older { head: head.revision, revision }),
            false => Ok(()),
        }
    }

    fn take_base(&mut self, made: Result<BaseResult, BaseError>) -> Result<(), FollowError> {
        self.base = None;
        let BaseResult { base, bytes, digests, auth_revision } = match made {
            Ok(made) => made,
            Err(error) => {
                self.base_pause = Instant::now() + BASE_PAUSE;
                self.fail(&format!("no base: {}", causes(&error)));
                return Ok(());
            }
        };
        self.base_after = Instant::now() + self.options.base_every;
        let last = if self.last == 0 { base.revision } else { self.last };
        if let Err(other) = self.seam.expect(&digests, last) {
            if let Err(error) = tokio::task::block_in_place(|| self.place.remove(&base.name())) {
                self.fail(&causes(&error));
            }
            return Err(other.into());
        }
        self.inventory.bases.push(base);
        self.auth_revision = auth_revision;
        if base.revision >= self.last && !self.is_open() {
            self.ttls = Ttls::default();
        }
        // Names must be unique even if the clock was set back.
        self.last_ms = self.last_ms.max(base.time_ms + 1);
        if self.last == 0 {
            self.last = base.revision;
            self.metrics.revision.set(base.revision);
        }
        self.metrics.bases.inc();
        self.metrics.bytes.inc_by(bytes);
        self.metrics.base_revision.set(base.revision);
        self.metrics.base_time.set(base.time_ms as f64 / 1000.0);
        say(&format!("base at revision {}, {} MiB", base.revision, bytes >> 20));
        self.remove_superfluous();
        Ok(())
    }

    /// Lists the objects again, since other processes may have removed some.
    fn list(&mut self) -> Result<(), FollowError> {
        self.inventory = tokio::task::block_in_place(|| self.place.inventory())?;
        Ok(())
    }

    /// Starts to remove objects beyond the retention, based on a new listing. Failures are retried after the
    /// next base.
    fn remove_superfluous(&mut self) {
        let (Some(keep), None) = (self.options.keep, &self.removal) else { return };
        let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let (place, stop) = (Arc::clone(&self.place), self.stop.1.clone());
        self.removal = Some(tokio::task::spawn_blocking(move || {
            let mut removed = place.inventory()?.superfluous(now_ms().saturating_sub(keep));
            let mut names = removed.iter().take_while(|_| !stop.is_stopped());
            let count = names.try_fold(0, |count, name| place.remove(name).map(|()| count + 1))?;
            removed.truncate(count);
            Ok(removed)
        }));
    }

    fn take_removed(&mut self, removed: Result<Vec<String>, PlaceError>) {
        self.removal = None;
        match removed {
            Ok(names) => {
                let names: HashSet<String> = names.into_iter().collect();
                self.inventory.bases.retain(|base| !names.contains(&base.name()));
                self.inventory.segments.retain(|segment| !names.contains(&segment.name()));
            }
            Err(error) => self.fail(&causes(&error)),
        }
    }

    async fn observe(&mut self, head: Head, session: &Session) -> Result<(), ArchiveBroken> {
        self.metrics.head.set(head.revision);
        if !self.seam.is_confirmed(self.last) {
            return Ok(());
        }
        let late = if self.closed.is_some() { TTLS_TIMEOUT } else { Duration::ZERO };
        if self.segment_since.elapsed() >= self.options.segment_every.max(late) {
            self.close(session).await?;
            if self.seam.lineage.id == 0 {
                self.follow_lineage(session.lineage().await?).await?;
            }
            let lacks_ttls = !self.ttls.is_empty() && !self.is_open();
            // A watch does not report modified users and roles.
            if lacks_ttls || session.auth().await?.1 != self.auth_revision {
                self.base_after = self.base_after.min(Instant::now());
            }
        }
        if self.base.is_none() && Instant::now() >= self.base_after.max(self.base_pause) {
            // Read before the base starts: a concurrent change makes another base due.
            let (_, auth_revision) = session.auth().await?;
            let (session, place, stop) = (session.clone(), Arc::clone(&self.place), self.stop.1.clone());
            let made = base::make(session, place, self.last_ms, auth_revision, stop);
            self.base = Some(tokio::spawn(made));
        }
        if self.metrics.revision.get() >= head.revision {
            self.whole_at = Instant::now();
        }
        self.note_behind();
        Ok(())
    }

    /// Updates the metrics during a write.
    async fn note_head(&self, session: Option<&Session>) {
        if let Some(session) = session
            && let Ok(Ok(head)) = tokio::time::timeout(PAUSE, session.head()).await
        {
            self.metrics.head.set(head.revision);
        }
        self.note_behind();
    }

    fn note_behind(&self) {
        let metrics = &self.metrics;
        metrics.behind_revisions.set((metrics.head.get() - metrics.revision.get()).max(0));
        metrics.behind_seconds.set(self.whole_at.elapsed().as_secs_f64());
    }

    async fn take(
        &mut self,
        response: WatchResponse,
        revisions: &mut EventRevisions,
        session: &Session,
    ) -> Result<(), ArchiveBroken> {
        let mut gap = None;
        revisions.take(response, |whole| {
            self.seam.take(&whole, self.last)?;
            gap = gap.or_else(|| self.push(whole));
            Ok::<(), FollowError>(())
        })?;
        if let Some(found) = gap {
            return Err(self.skip(found, session).await?);
        }
        if self.segment.bytes() >= self.options.segment_bytes {
            self.close(session).await?;
        }
        Ok(())
    }

    /// Appends the next revision. Returns its number if revisions before it are missing.
    fn push(&mut self, whole: WholeRevision) -> Option<i64> {
        let WholeRevision { revision, events } = whole;
        if revision <= self.last {
            return None;
        }
        if revision != self.last + 1 {
            return Some(revision);
        }
        for kv in events.iter().filter_map(|event| event.kv.as_ref()) {
            if kv.lease != 0 {
                self.ttls.attach(kv.lease);
            }
        }
        self.last_ms = self.last_ms.max(now_ms());
        if self.segment.span().is_none() {
            let (before, lineage) = (self.seam.before(self.last), self.seam.lineage.to_string());
            self.segment.push(&Record { before, lineage, ..Record::default() });
        }
        self.segment.push(&Record { revision, time_ms: self.last_ms, events, ..Record::default() });
        self.last = revision;
        None
    }

    /// Skips revisions that the cluster has compacted. The next connection continues after the first base
    /// beyond them, or creates one.
    async fn skip(&mut self, to: i64, session: &Session) -> Result<ArchiveBroken, FollowError> {
        self.write(Some(session)).await?;
        let reason = match to > self.last {
            true => format!("the cluster no longer has the revisions after {}, up to {to}", self.last),
            false => format!("the cluster no longer has the data to compare with revision {to}"),
        };
        self.list()?;
        let last = self.inventory.reached_after(self.last, to).unwrap_or(0);
        let mut seam = tokio::task::block_in_place(|| Seam::load(&self.place, &self.inventory, last))?;
        seam.lineage = std::mem::take(&mut self.seam.lineage);
        (self.last, self.seam) = (last, seam);
        if last > 0 {
            self.metrics.revision.set(last);
        } else {
            self.base_after = Instant::now();
        }
        self.metrics.gaps.inc();
        Ok(ArchiveBroken::Lost(reason))
    }

    /// Reports whether there are received revisions that are not written.
    fn is_open(&self) -> bool {
        self.segment.span().is_some() || self.closed.is_some()
    }

    /// Writes all received revisions and `head.json`. Without a session, TTLs are not requested.
    async fn write(&mut self, session: Option<&Session>) -> Result<(), FollowError> {
        match session {
            Some(session) => {
                if self.segment.span().is_some() {
                    self.close(session).await?;
                }
                if self.closed.is_some() {
                    let _late = tokio::time::timeout(TTLS_TIMEOUT, self.ttls.answered()).await;
                }
            }
            None if self.closed.is_some() => self.finish(None).await?,
            None => {}
        }
        self.close_segment();
        self.finish(session).await
    }

    /// Closes the segment, after writing the previous one if necessary.
    async fn close(&mut self, session: &Session) -> Result<(), FollowError> {
        if self.closed.is_some() {
            self.finish(Some(session)).await?;
        }
        self.close_segment();
        if self.closed.is_some() {
            self.ttls.ask(session);
            if self.ttls.is_asking() {
                return Ok(());
            }
        }
        self.finish(Some(session)).await
    }

    fn close_segment(&mut self) {
        self.segment_since = Instant::now();
        if self.segment.span().is_some() {
            self.closed = Some(std::mem::replace(&mut self.segment, SegmentWriter::new()));
        }
    }

    /// Writes the closed segment with the TTLs known so far, and `head.json`.
    async fn finish(&mut self, session: Option<&Session>) -> Result<(), FollowError> {
        let mut reached = None;
        if let Some(mut closed) = self.closed.take() {
            let leases = self.ttls.take();
            if !leases.is_empty() {
                closed.push(&Record { leases, ..Record::default() });
            }
            let (first, last, time_ms) = closed.span().expect("one without revisions is not closed");
            reached = self.segment.span().map(|_| (last, time_ms));
            let mut segment = Segment { first, last, time_ms };
            let object = Bytes::from(closed.finish());
            // A concurrent archiver may have written a segment with this name, but with other times of the
            // revisions.
            while !self.put(&segment.name(), &object, false, session).await? {
                segment.time_ms += 1;
            }
            self.inventory.segments.push(segment);
            self.metrics.segments.inc();
            self.metrics.bytes.inc_by(object.len() as u64);
            self.metrics.revision.set(last);
        }
        if self.last == 0 {
            return Ok(());
        }
        let early = self.last_ms - now_ms();
        if early > CLOCK_TOLERANCE_MS {
            let seconds = early / 1000;
            self.fail(&format!(
                "the clock is {seconds} s before the last time in the archive: what comes until then \
                 is late for `restore --time` and for `--keep`"
            ));
        }
        let (revision, time_ms) = reached.unwrap_or_else(|| {
            self.last_ms = self.last_ms.max(now_ms());
            (self.last, self.last_ms)
        });
        let auth_revision = if self.ttls.is_empty() { self.auth_revision } else { 0 };
        let head = ReachedRevision { revision, time_ms, auth_revision };
        let head = serde_json::to_vec(&head).expect("numbers are JSON");
        self.put(HEAD, &head.into(), true, session).await.map(drop)
    }

    /// Retries until the object is written, or until a signal. Returns false if another object has the name.
    async fn put(
        &mut self,
        name: &str,
        object: &Bytes,
        replaces: bool,
        session: Option<&Session>,
    ) -> Result<bool, FollowError> {
        let mut signalled = self.signalled.clone();
        loop {
            let (place, name, object) = (Arc::clone(&self.place), name.to_owned(), object.clone());
            let mut put = Some(tokio::task::spawn_blocking(move || match replaces {
                true => place.replace(&name, &object).map(|()| true),
                false => place.put(&name, &object),
            }));
            let put = loop {
                tokio::select! {
                    biased;
                    put = finished(&mut put) => break put,
                    () = tokio::time::sleep(PAUSE) => self.note_head(session).await,
                }
            };
            let error = match put {
                Ok(is_made) => return Ok(is_made),
                Err(error) => error,
            };
            self.note_head(session).await;
            self.fail(&causes(&error));
            if *signalled.borrow() {
                return Err(error.into());
            }
            tokio::select! {
                () = first_signal(&mut signalled) => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

/// Awaits a task. None never completes.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> T {
    match task {
        Some(task) => task.await.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic())),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
