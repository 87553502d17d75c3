//! What the leaders' tasks for leases wait for: commands, read points, other members.

use std::collections::BTreeMap;

use raft_node::Term;
use state_machine::{LedTerm, Outcome, Remaining, RenewalBatch};

use crate::requests::{LeaseQuestion, RequestId};

/// Requests of tasks have ids from here on, those of clients below.
const TASKS: RequestId = 1 << 62;

/// Whether a request is that of a task.
pub(crate) fn is_task(request: RequestId) -> bool {
    request >= TASKS
}

/// What happens to leases on a member.
#[derive(Debug)]
pub(crate) enum LeaseEvent {
    /// The leader of a term takes a turn.
    Turn { boot: u64, term: Term },
    /// What a task waited for has ended.
    Step { boot: u64, task: RequestId, end: TaskResult },
    /// The question of a client of the member `from` arrives.
    Asked { from: u64, request: RequestId, question: LeaseQuestion },
    /// Expired leases that a client renews may be revoked by now.
    Look { boot: u64, question: u64 },
    /// The leader's answer arrives; none if it does not lead.
    Answered { request: RequestId, answers: Option<Vec<Remaining>> },
}

/// How a command or a read point ended.
#[derive(Debug)]
pub(crate) enum TaskResult {
    Applied(Outcome),
    Readable,
    Failed,
}

/// What a task does when its command or read point has ended.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// Begins to lead the term.
    Lead {
        term: Term,
    },
    /// Begins to lead the term, and answers a question.
    LeadFor {
        term: Term,
        question: u64,
    },
    /// The turn's record is done.
    Recorded {
        term: Term,
    },
    Expired {
        term: Term,
        ids: Vec<i64>,
    },
    /// The level of commands is raised, or is not.
    Raised,
    /// One of the things that an answer waits for is done.
    Answer {
        question: u64,
    },
}

/// A question that the leader works on.
#[derive(Debug)]
pub(crate) struct Question {
    pub leader: u64,
    /// The member whose client asks, and its request.
    pub from: u64,
    pub request: RequestId,
    pub question: LeaseQuestion,
    pub led: Option<LedTerm>,
    pub batch: Option<RenewalBatch>,
    /// Commands and read points that it waits for.
    pub waiting: u32,
    /// Expired leases that it waits for, and until when.
    pub revoked: Option<(Vec<i64>, u64)>,
}

/// Everything under way.
#[derive(Default)]
pub(crate) struct LeaseTasks {
    newest: u64,
    /// By request: the member, and what it does next.
    tasks: BTreeMap<RequestId, (u64, Then)>,
    questions: BTreeMap<u64, Question>,
}

impl LeaseTasks {
    /// A new task of a member.
    pub fn add(&mut self, member: u64, then: Then) -> RequestId {
        self.newest += 1;
        let request = TASKS | self.newest;
        self.tasks.insert(request, (member, then));
        request
    }

    /// The member of a task.
    pub fn member(&self, task: RequestId) -> Option<u64> {
        self.tasks.get(&task).map(|(member, _)| *member)
    }

    /// A task has what it waited for.
    pub fn take(&mut self, task: RequestId) -> Option<Then> {
        self.tasks.remove(&task).map(|(_, then)| then)
    }

    /// Whether the member waits for the read point with which it begins to lead.
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

    /// A member went down.
    pub fn forget(&mut self, member: u64) {
        self.tasks.retain(|_, (of, _)| *of != member);
        self.questions.retain(|_, question| question.leader != member);
    }
}
