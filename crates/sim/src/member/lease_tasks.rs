//! Pending lease tasks of leaders, which wait for commands, read indexes or other members.

use std::collections::BTreeMap;

use raft_node::Term;
use state_machine::{LedTerm, Outcome, Remaining, RenewalBatch};

use crate::requests::{LeaseQuestion, RequestId};

/// First request id of tasks; those of clients are lower.
const TASKS: RequestId = 1 << 62;

pub(crate) fn is_task(request: RequestId) -> bool {
    request >= TASKS
}

#[derive(Debug)]
pub(crate) enum LeaseEvent {
    /// Turn of the leader of a term.
    Turn { boot: u64, term: Term },
    /// The command or read index of a task has completed.
    Step { boot: u64, task: RequestId, end: TaskResult },
    /// A question from a client of the member `from` arrives.
    Asked { from: u64, request: RequestId, question: LeaseQuestion },
    /// Check whether expired leases that a client renews are revoked.
    Look { boot: u64, question: u64 },
    /// The leader's response arrives; none if it is not the leader.
    Answered { request: RequestId, answers: Option<Vec<Remaining>> },
}

/// Result of a command or a read index.
#[derive(Debug)]
pub(crate) enum TaskResult {
    Applied(Outcome),
    Readable,
    Failed,
}

/// Continuation of a task after its command or read index has completed.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    Lead {
        term: Term,
    },
    /// Start to lead the term, and respond to a question.
    LeadFor {
        term: Term,
        question: u64,
    },
    Recorded {
        term: Term,
    },
    Expired {
        term: Term,
        ids: Vec<i64>,
    },
    /// The attempt to raise the command level has completed.
    Raised,
    /// A step of a pending response has completed.
    Answer {
        question: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Question {
    pub leader: u64,
    /// Member of the requesting client, and the client's request.
    pub from: u64,
    pub request: RequestId,
    pub question: LeaseQuestion,
    pub led: Option<LedTerm>,
    pub batch: Option<RenewalBatch>,
    pub waiting: u32,
    /// Expired leases that it waits for, and the deadline.
    pub revoked: Option<(Vec<i64>, u64)>,
}

#[derive(Default)]
pub(crate) struct LeaseTasks {
    newest: u64,
    /// Member and continuation of each task, by request.
    tasks: BTreeMap<RequestId, (u64, Then)>,
    questions: BTreeMap<u64, Question>,
}

impl LeaseTasks {
    pub fn add(&mut self, member: u64, then: Then) -> RequestId {
        self.newest += 1;
        let request = TASKS | self.newest;
        self.tasks.insert(request, (member, then));
        request
    }

    pub fn member(&self, task: RequestId) -> Option<u64> {
        self.tasks.get(&task).map(|(member, _)| *member)
    }

    /// Removes a completed task and returns its continuation.
    pub fn take(&mut self, task: RequestId) -> Option<Then> {
        self.tasks.remove(&task).map(|(_, then)| then)
    }

    /// Reports whether the member waits for the read index at the start of its term as leader.
    pub fn is_beginning(&self, member: u64, term: Term) -> bool {
        let begins = |then: &Then| matches!(then, Then::Lead { term: begun } if *begun == term);
        self.tasks.values().any(|(of, then)| *of == member && begins(then))
    }

    pub fn add_question(&mut self, question: Question) -> u64 {
        self.newest += 1;
        self.questions.insert(self.newest, question);
        self.newest
    }

    pub fn question(&mut self, number: u64) -> Option<&mut Question> {
        self.questions.get_mut(&number)
    }

    pub fn take_question(&mut self, number: u64) -> Option<Question> {
        self.questions.remove(&number)
    }

    pub fn forget(&mut self, member: u64) {
        self.tasks.retain(|_, (of, _)| *of != member);
        self.questions.retain(|_, question| question.leader != member);
    }
}
