//! Phases 2 and 3: applies the events after the copy, and finally compares the copy with the source.
//!
//! * A failed connection is replaced by one to the next endpoint. The watch resumes after the last whole
//!   revision.
//! * The import ends at a revision that the source had, by a linearizable read, after the end was requested.
//!   So it contains all writes acknowledged before.
//! * Leases and users do not generate events. Leases are read at the end; changed users fail the import.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::digests::Digests;
use super::events::{Events, News};
use super::progress::{ImportProgress, say};
use super::revisions::{EventsError, Revisions, WholeRevision};
use super::source::{self, Head, Session, SourceRefusal};
use super::target::{ImportTarget, TargetError};
use crate::operator::OperatorClient;
use state_machine::Lineage;

/// Delay before reconnecting, and before a state that has to settle is checked again.
const PAUSE: Duration = Duration::from_millis(300);
/// Timeout for a response of the source after a signal.
const ANSWER_AFTER_SIGNAL: Duration = Duration::from_secs(15);
/// Maximum hash comparisons. A concurrent compaction may cause a mismatch.
const COMPARED_MAX: u32 = 3;

/// Failure to follow the source.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Events(#[from] EventsError),
    #[error(
        "the source is compacted to revision {compacted}, and the copy ends at revision {revision}: what is \
         between them is lost. Remove the directory and import again"
    )]
    Compacted { revision: i64, compacted: i64 },
    #[error("the endpoints belong to cluster {found}, the copy to cluster {wanted}")]
    OtherCluster { found: String, wanted: String },
    #[error(
        "the source is at revision {head}, and the copy at revision {revision}: the source was replaced by \
         an older state. Remove the directory and import again"
    )]
    Older { head: i64, revision: i64 },
    #[error(
        "users, roles or their permissions were changed since the copy, and no watch reports that. Remove \
         the directory and import again"
    )]
    UsersChanged,
    #[error(
        "at revision {revision} the source has HashKV {theirs:?} (hash, compact revision), the copy \
         {ours:?}. Remove the directory and import again"
    )]
    HashDiffers { revision: i64, theirs: (u32, i64), ours: (u32, i64) },
    #[error(transparent)]
    Refused(#[from] SourceRefusal),
    #[error(
        "no answer of the source for {seconds} s ({reason}). The copy is retained at revision {revision}: rerun to resume"
    )]
    Silent { seconds: u64, reason: String, revision: i64 },
    #[error("{reason}, for {seconds} s. The copy is retained at revision {revision}: rerun to resume")]
    Unsettled { seconds: u64, reason: String, revision: i64 },
}

type ImportBroken = source::Broken<FollowError>;

impl From<TargetError> for ImportBroken {
    fn from(error: TargetError) -> ImportBroken {
        ImportBroken::Fatal(error.into())
    }
}

/// Evidence that the copy equals the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    pub revision: i64,
    pub compact_revision: i64,
    pub hash: u32,
    pub leases: usize,
    /// The source's revision after the comparison.
    pub source_revision: i64,
}

/// Condition for finishing the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At the first revision read from the source.
    CaughtUp,
    Signalled,
}

/// Copied revisions that are compared with the source again, which may have been rolled back. Revisions that
/// it has compacted are covered by the final hash only.
struct Seam {
    /// Start of the watch. The changes of this revision may be incomplete.
    after: i64,
    theirs: Digests,
}

pub struct Follower {
    client: OperatorClient,
    target: ImportTarget,
    progress: ImportProgress,
    /// ID of the copied cluster.
    source: String,
    /// Lineage of the source, as of the last connection.
    lineage: Lineage,
    /// Time without a response after which the command fails.
    patience: Duration,
    signalled: watch::Receiver<bool>,
    until: Until,
    /// Revision at which the copy ends.
    goal: Option<i64>,
    answered: Instant,
    /// Start of the attempts to finish.
    ending: Option<Instant>,
    compared: u32,
}

impl Follower {
    /// Creates a follower. `source` is the [`cluster_name`] of the copied cluster.
    pub fn new(
        client: OperatorClient,
        target: ImportTarget,
        source: String,
        patience: Duration,
        signalled: watch::Receiver<bool>,
        until: Until,
    ) -> Follower {
        let (progress, now) = (ImportProgress::default(), Instant::now());
        Follower {
            client,
            target,
            progress,
            source,
            lineage: Lineage::default(),
            patience,
            signalled,
            until,
            goal: None,
            answered: now,
            ending: None,
            compared: 0,
        }
    }

    /// Follows the source until the copy is finished. The store is durable and closed afterwards.
    pub async fn run(mut self) -> Result<Proof, FollowError> {
        let ended = self.connections().await;
        // Changes that do not match must not become durable.
        if !matches!(ended, Err(FollowError::Target(_) | FollowError::HashDiffers { .. })) {
            if ended.is_err() {
                // A directory that was finished before may be finished again unchanged.
                let lineage = self.target.lineage()?.ended_at(self.target.revision());
                self.target.set_lineage(&lineage)?;
            }
            self.target.persist()?;
        }
        ended
    }

    async fn connections(&mut self) -> Result<Proof, FollowError> {
        loop {
            let reason = match self.connection().await {
                Ok(proof) => return Ok(proof),
                Err(ImportBroken::Fatal(error)) => return Err(error),
                Err(ImportBroken::Lost(reason)) => reason,
            };
            let patience = patience(self.patience, &self.signalled);
            let revision = self.target.revision();
            if self.answered.elapsed() >= patience {
                return Err(FollowError::Silent { seconds: patience.as_secs(), reason, revision });
            }
            say(&format!("revision {revision}: reconnecting, the source failed: {reason}"));
            self.client.turn_away();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Follows over one connection. Its failure is an error.
    async fn connection(&mut self) -> Result<Proof, ImportBroken> {
        let session = Session::open(&mut self.client).await?;
        let head = session.head().await?;
        self.check(head, &session.lineage().await?)?;
        if self.until == Until::CaughtUp || *self.signalled.borrow() {
            self.goal.get_or_insert(head.revision);
        }
        let mut seam = Seam { after: self.target.compared_after()?, theirs: Digests::default() };
        let mut events = Events::begin(&session, seam.after).await?;
        let mut revisions = Revisions::default();
        say(&format!("revision {}: following {}", self.target.revision(), self.client.endpoint()));
        let mut signalled = self.signalled.clone();
        loop {
            if self.goal.is_some_and(|goal| self.target.revision() >= goal)
                && let Some(proof) = self.end(&session).await?
            {
                return Ok(proof);
            }
            let awaits_signal = self.goal.is_none();
            tokio::select! {
                biased;
                () = first_signal(&mut signalled), if awaits_signal => {
                    // Read after the signal, so that all writes acknowledged before it are included.
                    self.goal = Some(session.head().await?.revision);
                }
                news = events.next() => match news? {
                    News::Head(head) => {
                        self.answered = Instant::now();
                        let revision = self.target.revision();
                        self.progress.observed(head.revision, revision);
                        events.check(head, revision)?;
                    }
                    News::Events(response) => {
                        let mut take = |whole: WholeRevision| self.take(&whole, &mut seam);
                        revisions.take(response, |whole| Ok::<(), FollowError>(take(whole)?))?;
                    }
                    News::Compacted(compacted) => {
                        let revision = self.target.revision();
                        if compacted <= revision {
                            seam = Seam { after: compacted, theirs: Digests::default() };
                            revisions = Revisions::default();
                            events = Events::begin(&session, compacted).await?;
                            continue;
                        }
                        return Err(FollowError::Compacted { revision, compacted }.into());
                    }
                },
            }
        }
    }

    /// Applies a revision. Revisions that the copy already has are compared once the last of them has
    /// arrived.
    fn take(&mut self, whole: &WholeRevision, seam: &mut Seam) -> Result<(), TargetError> {
        if whole.revision > seam.after && whole.revision <= self.target.revision() {
            seam.theirs.add_revision(whole);
        }
        if whole.revision == self.target.revision() {
            self.target.compare(&std::mem::take(&mut seam.theirs))?;
        }
        self.target.apply(whole)
    }

    fn check(&mut self, head: Head, lineage: &Lineage) -> Result<(), FollowError> {
        check_cluster(head, &self.source)?;
        let revision = self.target.revision();
        if head.revision < revision {
            return Err(FollowError::Older { head: head.revision, revision });
        }
        let ours = self.target.lineage()?;
        if !lineage.continues(&ours, revision) {
            return Err(TargetError::OtherHistory(revision).into());
        }
        self.lineage = ours.followed_by(lineage, revision);
        self.target.set_lineage(&self.lineage)?;
        self.answered = Instant::now();
        Ok(())
    }

    /// Compares the copy with the source. Returns None if some state has to settle, and the copy continues.
    async fn end(&mut self, session: &Session) -> Result<Option<Proof>, ImportBroken> {
        let revision = self.target.revision();
        let leases = session.leases().await?;
        if let Err(lease) = self.target.set_leases(&leases)? {
            return self.go_on(session, format!("lease {lease:x} is ending")).await;
        }
        let (is_enabled, auth_revision) = session.auth().await?;
        // A cluster that never had users is at auth revision 0 or 1.
        if (is_enabled, auth_revision.max(1)) != self.target.auth()? {
            return Err(FollowError::UsersChanged.into());
        }
        let Some(theirs) = session.hash(revision).await? else {
            return self.go_on(session, format!("the source has compacted revision {revision}")).await;
        };
        self.target.compact(theirs.compact_revision)?;
        // Members started from the copy begin a new history.
        self.target.set_lineage(&self.lineage.ended_at(revision))?;
        self.target.persist()?;
        let (theirs, ours) = ((theirs.hash, theirs.compact_revision), self.target.hash()?);
        if ours != theirs {
            self.compared += 1;
            if self.compared >= COMPARED_MAX {
                return Err(FollowError::HashDiffers { revision, theirs, ours }.into());
            }
            return self.go_on(session, "the hashes differ".to_owned()).await;
        }
        let source_revision = session.head().await?.revision;
        let (hash, compact_revision) = ours;
        Ok(Some(Proof { revision, compact_revision, hash, leases: leases.len(), source_revision }))
    }

    /// Sets the source's current revision as the next goal.
    async fn go_on(&mut self, session: &Session, reason: String) -> Result<Option<Proof>, ImportBroken> {
        let since = *self.ending.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience {
            let (seconds, revision) = (self.patience.as_secs(), self.target.revision());
            return Err(FollowError::Unsettled { seconds, reason, revision }.into());
        }
        tokio::time::sleep(PAUSE).await;
        self.goal = Some(session.head().await?.revision);
        Ok(None)
    }
}

/// Completes when a signal has requested the end.
pub async fn first_signal(signalled: &mut watch::Receiver<bool>) {
    if signalled.wait_for(|is_signalled| *is_signalled).await.is_err() {
        // Signals cannot be received.
        std::future::pending().await
    }
}

/// Returns the timeout for a response: `given`, or less after a signal.
pub fn patience(given: Duration, signalled: &watch::Receiver<bool>) -> Duration {
    if *signalled.borrow() { given.min(ANSWER_AFTER_SIGNAL) } else { given }
}

/// Returns an error unless the source is the cluster `wanted`.
pub fn check_cluster(head: Head, wanted: &str) -> Result<(), FollowError> {
    let (found, wanted) = (cluster_name(head), wanted.to_owned());
    if found == wanted { Ok(()) } else { Err(FollowError::OtherCluster { found, wanted }) }
}

/// Formats a cluster ID in hexadecimal, like other tools.
pub fn cluster_name(head: Head) -> String {
    format!("{:x}", head.cluster_id)
}
