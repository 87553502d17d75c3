//! Where this server answers otherwise than etcd, step by step, and why.

/// What is accepted in place of the recorded answer.
#[derive(Debug)]
pub enum Expected {
    /// This code.
    Code(&'static str),
    /// A part of the same events, or all of them and more, in responses of other sizes. The rest of the
    /// script is left out.
    OtherParts,
    /// This code, and the rest of the script is left out: it needs a service that is not there yet.
    NotYet(&'static str),
}

impl Expected {
    pub fn ends_the_script(&self) -> bool {
        matches!(self, Self::NotYet(_) | Self::OtherParts)
    }
}

/// One agreed difference.
#[derive(Debug)]
pub struct Exception {
    pub script: &'static str,
    /// Counted from 1.
    pub steps: &'static [usize],
    pub expected: Expected,
    #[expect(dead_code, reason = "for readers of the table, and printed with it")]
    pub why: &'static str,
}

/// A service that is not there yet: the first of its steps that has an outcome ends its script.
#[derive(Debug)]
pub struct Unbuilt {
    /// The methods of the service begin with this.
    pub service: &'static str,
    pub expected: Expected,
}

pub const ALL: &[Exception] = &[
    Exception {
        script: "malformed",
        steps: &[11],
        expected: Expected::Code("Internal"),
        why: "the decoder refuses a known field of a wrong wire type, where Go's keeps it as an unknown one",
    },
    Exception {
        script: "election",
        steps: &[74],
        expected: Expected::Code("Unknown"),
        why: "a candidate whose lease has ended does not lead: its key has gone",
    },
    Exception {
        script: "watch-history-fragments",
        steps: &[6],
        expected: Expected::OtherParts,
        why: HISTORY_PARTS,
    },
    Exception {
        script: "watch-history-large",
        steps: &[6],
        expected: Expected::OtherParts,
        why: HISTORY_PARTS,
    },
];

const HISTORY_PARTS: &str =
    "a response holds about 1 MiB of history, and whole revisions; etcd's holds 1000 revisions";

pub const UNBUILT: &[Unbuilt] = &[];

/// What is expected in place of the recorded outcome of this step.
pub fn find(script: &str, step: usize, method: &str) -> Option<&'static Expected> {
    let listed = ALL.iter().find(|exception| exception.script == script && exception.steps.contains(&step));
    let unbuilt = || UNBUILT.iter().find(|unbuilt| method.starts_with(unbuilt.service));
    listed.map(|exception| &exception.expected).or_else(|| unbuilt().map(|unbuilt| &unbuilt.expected))
}
