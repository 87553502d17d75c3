//! The result of an experiment: the number of trials by kind, and all violations.

use std::collections::BTreeMap;

/// Number of directories retained as evidence; more would fill the disk without new insight.
const EVIDENCE_MAX: usize = 3;
const VIOLATIONS_SHOWN: usize = 20;

#[derive(Debug, Default)]
pub struct ExperimentReport {
    trials: BTreeMap<String, u64>,
    violations: Vec<String>,
    bad: BTreeMap<String, u64>,
    /// True if faults are expected, so their evidence is not worth the space.
    discards_evidence: bool,
}

impl ExperimentReport {
    /// Returns the report of an experiment that is itself tested.
    pub fn on_trial() -> ExperimentReport {
        ExperimentReport { discards_evidence: true, ..ExperimentReport::default() }
    }

    pub fn count(&mut self, kind: &str) {
        self.add(kind, 1);
    }

    pub fn add(&mut self, kind: &str, trials: u64) {
        *self.trials.entry(kind.to_owned()).or_default() += trials;
    }

    pub fn violation(&mut self, trial: &str, what: String) {
        *self.bad.entry(trial.to_owned()).or_default() += 1;
        self.violations.push(format!("{trial}: {what}"));
    }

    pub fn checked(&self) -> u64 {
        self.trials.values().sum()
    }

    /// Returns the number of trials with violations.
    pub fn bad(&self) -> usize {
        self.bad.len()
    }

    pub fn keeps_evidence(&self) -> bool {
        !self.discards_evidence && self.bad.len() < EVIDENCE_MAX
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.violations.iter().take(VIOLATIONS_SHOWN).cloned().collect();
        if self.violations.len() > VIOLATIONS_SHOWN {
            lines.push(format!("… and {} more", self.violations.len() - VIOLATIONS_SHOWN));
        }
        let trials: Vec<String> = self.trials.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        lines.push(format!("{} trials ({}), {} bad", self.checked(), trials.join(", "), self.bad()));
        lines
    }
}
