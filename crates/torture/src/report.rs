//! What an experiment came to: how often which kind of trial was made, and everything that was wrong.

use std::collections::BTreeMap;

/// More of the same would fill the disk and teach nothing.
const EVIDENCE_MAX: usize = 3;
const VIOLATIONS_SHOWN: usize = 20;

#[derive(Debug, Default)]
pub struct ExperimentReport {
    trials: BTreeMap<String, u64>,
    violations: Vec<String>,
    bad: BTreeMap<String, u64>,
    /// Faults are expected: what shows them is not worth its room.
    discards_evidence: bool,
}

impl ExperimentReport {
    /// For an experiment that is itself on trial.
    pub fn on_trial() -> ExperimentReport {
        ExperimentReport { discards_evidence: true, ..ExperimentReport::default() }
    }

    /// One trial of a kind was made.
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

    /// Trials in which anything was wrong.
    pub fn bad(&self) -> usize {
        self.bad.len()
    }

    pub fn keeps_evidence(&self) -> bool {
        !self.discards_evidence && self.bad.len() < EVIDENCE_MAX
    }

    /// In lines.
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
