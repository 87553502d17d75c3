//! Output of the check as text or JSON.

use serde_json::json;

use config::flags::{Effective, ValueSource};
use config::shown;
use process::visible::{visible, visible_json};

/// Findings of the check.
#[derive(Debug, Default)]
pub struct ConfigReport {
    pub settings: Vec<Effective>,
    /// Flags, each with why it has no effect.
    pub without_effect: Vec<(String, String)>,
    /// Flags and variables that a configuration file overrides.
    pub ignored: Vec<String>,
    pub risks: Vec<String>,
    /// Why no member would start.
    pub error: Option<String>,
}

impl ConfigReport {
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut section = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                let lines: String = lines.iter().map(|line| format!("  {}\n", visible(line))).collect();
                text.push_str(&format!("{title}:\n{lines}\n"));
            }
        };
        let given = self.settings.iter().filter(|row| row.source != ValueSource::Default);
        let given = given.map(|row| format!("--{}={} ({})", row.name, value(row), source(row)));
        section("explicitly set; all other flags have their defaults, see -w json", given.collect());
        section("ignored: only --config-file applies", self.ignored.clone());
        let without = self.without_effect.iter().map(|(flag, reason)| format!("--{flag}: {reason}"));
        section("accepted without effect", without.collect());
        section("risks", self.risks.clone());
        text.push_str(&match &self.error {
            Some(error) => format!("a member would not start: {}\n", visible(error)),
            None => "configuration is valid\n".to_owned(),
        });
        text
    }

    pub fn json(&self) -> String {
        let setting =
            |row: &Effective| json!({ "flag": row.name, "value": value(row), "source": source(row) });
        let without = |(flag, reason): &(String, String)| json!({ "flag": flag, "reason": reason });
        let report = json!({
            "settings": self.settings.iter().map(setting).collect::<Vec<_>>(),
            "ignored": self.ignored,
            "without_effect": self.without_effect.iter().map(without).collect::<Vec<_>>(),
            "risks": self.risks,
            "error": self.error,
        });
        visible_json(&format!("{report:#}\n"))
    }
}

/// Without passwords.
fn value(row: &Effective) -> String {
    if row.value.is_empty() { String::new() } else { shown(&row.name, &row.value) }
}

fn source(row: &Effective) -> &'static str {
    match row.source {
        ValueSource::Default => "default",
        ValueSource::Flag => "flag",
        ValueSource::Variable => "environment",
        ValueSource::File => "file",
    }
}
