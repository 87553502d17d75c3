//! Where a report goes: the flags of every command that has one, and the writing.

use super::terminal::{print, write_file};
use crate::report::model::{FORMAT, Report};
use crate::report::page::Page;
use crate::report::{compose, csv, html, markdown};
use clap::Args;
use std::path::{Path, PathBuf};

/// A report of another make would be read wrongly, not refused, by serde alone.
const REPORT_BYTES_MAX: u64 = 1 << 30;

/// Files to write a report to.
#[derive(Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write the report as one HTML file with plots, which needs nothing else to be shown
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write every figure of every round as a line of CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the tables as Markdown, for a README
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Flags of `report`.
#[derive(Args, Debug)]
pub struct ReportFlags {
    /// What `suite --json` or `compare --json` wrote
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    #[command(flatten)]
    pub outputs: Outputs,
}

impl Outputs {
    /// Writes whatever was asked for.
    pub fn write(&self, report: &Report, page: &Page) -> Result<(), String> {
        if let Some(path) = &self.html {
            write_file(path, &html(page))?;
        }
        if let Some(path) = &self.csv {
            write_file(path, &csv(report))?;
        }
        if let Some(path) = &self.markdown {
            write_file(path, &markdown(page))?;
        }
        Ok(())
    }

    /// Tries every file, so that an hour of measuring does not end with a directory that is not there.
    pub fn check(&self) -> Result<(), String> {
        self.files().try_for_each(|path| check_writable(path))
    }

    /// Those that were asked for.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.html, &self.csv, &self.markdown].into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.files().next().is_none()
    }
}

/// `loadgen report`: files from a result; Markdown on standard output if no file is named.
pub fn report(flags: &ReportFlags) -> Result<(), String> {
    flags.outputs.check()?;
    let report = read(&flags.result)?;
    let page = compose::page(&report);
    if flags.outputs.is_empty() {
        return print(&markdown(&page));
    }
    flags.outputs.write(&report, &page)
}

fn read(path: &Path) -> Result<Report, String> {
    let fail = |error: &dyn std::fmt::Display| format!("read {}: {error}", path.display());
    let length = std::fs::metadata(path).map_err(|error| fail(&error))?.len();
    if length > REPORT_BYTES_MAX {
        return Err(fail(&format_args!("{length} bytes are more than any report has")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fail(&error))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| fail(&error))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => {
            return Err(fail(&format_args!("it has format {format}, this program reads {FORMAT}")));
        }
        None => return Err(fail(&"it is no result of `loadgen suite` or `loadgen compare`")),
    }
    serde_json::from_value(value).map_err(|error| fail(&error))
}

/// Whether the path of --json means standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes the text of --json.
pub fn write_json(path: &Path, text: &str) -> Result<(), String> {
    if is_standard_output(path) { print(text) } else { write_file(path, text) }
}

/// That the file of --json can be written is better known before the run.
pub fn check_json(path: Option<&Path>) -> Result<(), String> {
    path.filter(|path| !is_standard_output(path)).map_or(Ok(()), check_writable)
}

/// Opens the file as it will be opened, without touching what it holds.
pub fn check_writable(path: &Path) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/report.json");

    #[test]
    fn a_result_becomes_three_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(dir.path().join(name));
        let outputs = Outputs { html: file("r.html"), csv: file("r.csv"), markdown: file("r.md") };
        report(&ReportFlags { result: SAMPLE.into(), outputs }).unwrap();
        for (name, begin) in
            [("r.html", "<!doctype html>"), ("r.csv", "suite,row,side,"), ("r.md", "# kv-server and")]
        {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(text.starts_with(begin), "{name}: {}", &text[..40]);
        }
    }

    #[test]
    fn what_is_no_result_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for (text, reason) in [
            ("{}", "it is no result of `loadgen suite` or `loadgen compare`"),
            ("{\"format\":99}", "it has format 99, this program reads 1"),
            ("{\"format\":1}", "missing field `title`"),
            ("[", "EOF while parsing a list at line 1 column 1"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path), Err(format!("read {}: {reason}", path.display())));
        }
        let missing = read(Path::new("/nonexistent.json")).unwrap_err();
        assert!(missing.starts_with("read /nonexistent.json: No such file"), "{missing}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_found_before_the_work() {
        let outputs = Outputs { html: Some("/nonexistent/r.html".into()), ..Outputs::default() };
        assert!(outputs.check().unwrap_err().starts_with("write /nonexistent/r.html: No such file"));
    }
}
