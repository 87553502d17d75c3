//! Where this server answers otherwise than etcd, step by step, and why.

/// What is accepted in place of the recorded answer.
#[derive(Debug)]
pub enum Expected {
    /// This code.
    Code(&'static str),
    /// This code, and the rest of the script is left out: it needs a service that is not there yet.
    NotYet(&'static str),
}

impl Expected {
    pub fn ends_the_script(&self) -> bool {
        matches!(self, Self::NotYet(_))
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

pub const ALL: &[Exception] = &[
    Exception {
        script: "put-lease",
        steps: &[1],
        expected: Expected::NotYet("Unimplemented"),
        why: "leases cannot be granted yet",
    },
    Exception {
        script: "malformed",
        steps: &[11],
        expected: Expected::Code("Internal"),
        why: "the decoder refuses a known field of a wrong wire type, where Go's keeps it as an unknown one",
    },
];

pub fn find(script: &str, step: usize) -> Option<&'static Exception> {
    ALL.iter().find(|exception| exception.script == script && exception.steps.contains(&step))
}
