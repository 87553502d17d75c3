//! Numbers of the read rounds under way.
//!
//! raft-rs knows a round by its context, and what acknowledges a round confirms all those before it. A round
//! that is asked for again under its name may be known no more: then it is the newest one. Late
//! acknowledgements of its first time would confirm rounds that began after they were sent. So a leader gives
//! each request a number, which is never used again, and has the name for the answer.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Term;

/// The names of the rounds that raft-rs has, by the numbers that it knows them by.
#[derive(Debug, Default)]
pub(crate) struct ReadNames {
    term: Term,
    newest: u64,
    names: BTreeMap<Bytes, Bytes>,
}

impl ReadNames {
    /// A number for a round of this term. Those of earlier terms are no more.
    pub(crate) fn number(&mut self, term: Term, name: Bytes) -> Bytes {
        if base::mutant("reused-read-names") {
            return name;
        }
        if self.term != term {
            self.term = term;
            self.names.clear();
        }
        self.newest += 1;
        let number = Bytes::copy_from_slice(&self.newest.to_le_bytes());
        self.names.insert(number.clone(), name);
        number
    }

    /// The name of a round that has ended; itself if a leader has named it.
    pub(crate) fn name(&mut self, context: Bytes) -> Bytes {
        self.names.remove(&context).unwrap_or(context)
    }
}
