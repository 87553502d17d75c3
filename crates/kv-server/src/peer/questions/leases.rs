//! Questions about leases to the leader, and their answers.
//!
//! One connection, to the member that led last, is kept and shared by all questions. After an error it is
//! given up.

use std::sync::Arc;
use std::time::Duration;

use api::peer::{LeaseAnswer, LeaseAnswers, LeaseQuestions};
use state_machine::Remaining;
use tokio::sync::Mutex;
use tonic::{Code, Status};

use crate::member::{LeaderLink, LeaseError, LeaseQuestion, RenewalAnswers};
use crate::peer::context::Context;
use crate::peer::link::{PeerConnection, dial};

/// Ids in one question. An answer takes at most 22 bytes for each.
const IDS_MAX: usize = 2_048;
/// What the leader may take: a sync of its disk, and the revoke of an expired lease. Then the caller tries
/// again, perhaps with another leader.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Where a member may be asked.
type UrlsOf = Box<dyn Fn(u64) -> Vec<String> + Send + Sync>;

/// Asks other members when they lead.
pub struct LeaseLink {
    context: Context,
    urls: UrlsOf,
    connection: Mutex<Option<(u64, PeerConnection)>>,
}

impl LeaseLink {
    pub fn new(context: Context, urls: UrlsOf) -> Arc<LeaseLink> {
        Arc::new(LeaseLink { context, urls, connection: Mutex::new(None) })
    }

    async fn client(&self, leader: u64) -> Option<PeerConnection> {
        let mut connection = self.connection.lock().await;
        if let Some((to, client)) = &*connection
            && *to == leader
        {
            return Some(client.clone());
        }
        for url in (self.urls)(leader) {
            if let Ok(client) = dial(&self.context.dialer, &url).await {
                return Some(connection.insert((leader, client)).1.clone());
            }
        }
        None
    }

    async fn ask_leader(&self, leader: u64, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let mut client = self.client(leader).await.ok_or(LeaseError::Unreachable)?;
        let hello = Some(self.context.hello(leader));
        let (ids, request) = match question {
            LeaseQuestion::Renew(ids) => (ids.len(), LeaseQuestions { hello, renew: ids, remaining: vec![] }),
            LeaseQuestion::Remaining(ids) => {
                (ids.len(), LeaseQuestions { hello, renew: vec![], remaining: ids })
            }
        };
        match client.leases(request).await {
            Ok(answer) => {
                let answers = answer.into_inner().answers;
                // A leader answers every id.
                if answers.len() != ids {
                    return Err(LeaseError::Unreachable);
                }
                let remaining =
                    |answer: LeaseAnswer| Remaining { ttl: answer.ttl, granted_ttl: answer.granted_ttl };
                Ok(answers.into_iter().map(remaining).collect())
            }
            Err(status) => Err(self.failed(leader, &status).await),
        }
    }

    async fn failed(&self, leader: u64, status: &Status) -> LeaseError {
        match status.code() {
            Code::FailedPrecondition => LeaseError::NotLeader,
            Code::ResourceExhausted => LeaseError::TooManyRequests,
            Code::DeadlineExceeded => LeaseError::Timeout,
            _ => {
                self.connection.lock().await.take_if(|(to, _)| *to == leader);
                LeaseError::Unreachable
            }
        }
    }
}

impl LeaderLink for LeaseLink {
    fn ask(&self, leader: u64, question: LeaseQuestion) -> RenewalAnswers<'_> {
        Box::pin(async move {
            let asked = self.ask_leader(leader, question);
            match tokio::time::timeout(ANSWER_WITHIN, asked).await {
                Ok(answers) => answers,
                Err(_) => {
                    self.connection.lock().await.take_if(|(to, _)| *to == leader);
                    Err(LeaseError::Unreachable)
                }
            }
        })
    }
}

/// What a peer asks, if it is within bounds.
pub(crate) fn question(request: LeaseQuestions) -> Result<LeaseQuestion, Status> {
    let LeaseQuestions { hello: _, renew, remaining } = request;
    if renew.len() + remaining.len() > IDS_MAX {
        return Err(Status::invalid_argument("too many leases in one question"));
    }
    match (renew.is_empty(), remaining.is_empty()) {
        (false, true) => Ok(LeaseQuestion::Renew(renew)),
        (true, _) => Ok(LeaseQuestion::Remaining(remaining)),
        (false, false) => Err(Status::invalid_argument("two questions in one")),
    }
}

/// The leader's answer to a peer.
pub(crate) fn answers(answered: Result<Vec<Remaining>, LeaseError>) -> Result<LeaseAnswers, Status> {
    let answer = |it: Remaining| LeaseAnswer { ttl: it.ttl, granted_ttl: it.granted_ttl };
    match answered {
        Ok(answers) => Ok(LeaseAnswers { answers: answers.into_iter().map(answer).collect() }),
        Err(LeaseError::NotLeader | LeaseError::NoLeader) => {
            Err(Status::failed_precondition("not the leader"))
        }
        Err(LeaseError::TooManyRequests) => Err(Status::resource_exhausted("too many requests")),
        Err(LeaseError::Timeout) => Err(Status::deadline_exceeded("timed out")),
        Err(LeaseError::Stopped | LeaseError::Unreachable) => Err(Status::unavailable("this member stops")),
        Err(LeaseError::Refused(error)) => Err(Status::unavailable(error.message())),
    }
}
