//! Numbers of the pending read rounds.
//!
//! raft-rs identifies a round by its context, and an acknowledgement of a round confirms all earlier ones.
//! raft-rs may have forgotten a round that is retried under its name, which then becomes the latest one.
//! Late acknowledgements of the first attempt would confirm rounds that started after they were sent. So a
//! leader gives each request a unique number, and maps it back to the name for the response.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Term;

/// Names of the rounds in raft-rs, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct ReadNames {
    term: Term,
    newest: u64,
    names: BTreeMap<Bytes, Bytes>,
}

impl ReadNames {
    /// Assigns a number to a round of this term. Drops those of earlier terms.
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

    /// Returns the name of a completed round; the context itself if no number was assigned.
    pub(crate) fn name(&mut self, context: Bytes) -> Bytes {
        self.names.remove(&context).unwrap_or(context)
    }
}
