//! Intended differences from etcd, by step, and their reasons.

/// Outcome accepted instead of the recorded response.
#[derive(Debug)]
pub enum Expected {
    /// A status code.
    Code(&'static str),
    /// A part of the same events, or all of them and more, in responses of other sizes. The rest of the
    /// script is skipped.
    OtherParts,
    /// A status code of an unimplemented service. The rest of the script is skipped.
    NotYet(&'static str),
}

impl Expected {
    pub fn ends_the_script(&self) -> bool {
        matches!(self, Self::NotYet(_) | Self::OtherParts)
    }
}

/// An intended difference.
#[derive(Debug)]
pub struct Exception {
    pub script: &'static str,
    /// Step numbers, starting with 1.
    pub steps: &'static [usize],
    pub expected: Expected,
    #[expect(dead_code, reason = "for readers of the table, and printed with it")]
    pub why: &'static str,
}

/// An unimplemented service: its first step with an outcome stops the script.
#[derive(Debug)]
pub struct Unbuilt {
    /// Prefix of the service's methods.
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

/// Returns the expected outcome of a step, if it differs from the recorded outcome.
pub fn find(script: &str, step: usize, method: &str) -> Option<&'static Expected> {
    let listed = ALL.iter().find(|exception| exception.script == script && exception.steps.contains(&step));
    let unbuilt = || UNBUILT.iter().find(|unbuilt| method.starts_with(unbuilt.service));
    listed.map(|exception| &exception.expected).or_else(|| unbuilt().map(|unbuilt| &unbuilt.expected))
}
