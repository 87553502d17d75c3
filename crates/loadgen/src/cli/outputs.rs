//! Output files: checked before a measurement, written after it.

use super::flags::outputs::{Outputs, ReportFlags, is_standard_output};
use super::terminal::{print, write_file};
use bench_report::compose;
use bench_report::model::{FORMAT, Report};
use bench_report::page::Page;
use bench_report::render::{csv, html, markdown};
use std::path::Path;

/// A result file is some megabytes; a larger one is something else.
const REPORT_BYTES_MAX: u64 = 1 << 30;

/// Writes the files that the flags name.
pub fn write(outputs: &Outputs, report: &Report, page: &Page) -> Result<(), String> {
    if let Some(path) = &outputs.html {
        write_file(path, &html(page))?;
    }
    if let Some(path) = &outputs.csv {
        write_file(path, &csv(report))?;
    }
    if let Some(path) = &outputs.markdown {
        write_file(path, &markdown(page))?;
    }
    Ok(())
}

/// Opens every file, so that an hour of measuring does not end with an unwritable path.
pub fn check(outputs: &Outputs) -> Result<(), String> {
    outputs.files().try_for_each(|path| check_writable(path))
}

/// `loadgen report`: files from a result; Markdown on standard output if no file is named.
pub fn report(flags: &ReportFlags) -> Result<(), String> {
    check(&flags.outputs)?;
    let report = read(&flags.result)?;
    let page = compose::page(&report);
    if flags.outputs.is_empty() {
        return print(&markdown(&page));
    }
    write(&flags.outputs, &report, &page)
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
    let mut report: Report = serde_json::from_value(value).map_err(|error| fail(&error))?;
    report.upgrade();
    Ok(report)
}

/// Writes the text of --json.
pub fn write_json(path: &Path, text: &str) -> Result<(), String> {
    if is_standard_output(path) { print(text) } else { write_file(path, text) }
}

/// Checks before a run that the file of --json can be written.
pub fn check_json(path: Option<&Path>) -> Result<(), String> {
    path.filter(|path| !is_standard_output(path)).map_or(Ok(()), check_writable)
}

/// Opens the file for writing without changing its content.
pub fn check_writable(path: &Path) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench-report/tests/data/report.json");

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
    fn files_that_are_no_result_are_refused_with_the_reason() {
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
    fn an_unwritable_file_is_found_before_the_measurement() {
        let outputs = Outputs { html: Some("/nonexistent/r.html".into()), ..Outputs::default() };
        assert!(check(&outputs).unwrap_err().starts_with("write /nonexistent/r.html: No such file"));
    }
}
