//! Output files: checked before a measurement, written after it.

use super::flags::outputs::{Outputs, is_standard_output};
use super::terminal::{print, write_file};
use bench_report::model::Report;
use bench_report::page::Page;
use bench_report::render::{csv, html, markdown};
use std::path::Path;

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

    #[test]
    fn an_unwritable_file_is_found_before_the_measurement() {
        let outputs = Outputs { html: Some("/nonexistent/r.html".into()), ..Outputs::default() };
        assert!(check(&outputs).unwrap_err().starts_with("write /nonexistent/r.html: No such file"));
    }
}
