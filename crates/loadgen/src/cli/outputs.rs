//! Output files: checked before a measurement, written after it.

use super::flags::outputs::{Outputs, is_standard_output};
use super::terminal::{first_error, write_file};
use bench_report::model::Report;
use bench_report::page::Page;
use bench_report::render::{csv, html, markdown};
use std::path::{Path, PathBuf};

/// Writes the files of the flags. A failure does not prevent the remaining files from being written.
pub fn write(outputs: &Outputs, report: &Report, page: &Page) -> Result<(), String> {
    let file = |path: &Option<PathBuf>, text: &dyn Fn() -> String| {
        path.as_deref().map_or(Ok(()), |path| write_file(path, &text()))
    };
    first_error([
        file(&outputs.html, &|| html(page)),
        file(&outputs.csv, &|| csv(report)),
        file(&outputs.markdown, &|| markdown(page)),
    ])
}

/// Opens every file, so that an unwritable path is detected before an hour of measuring.
pub fn check(outputs: &Outputs) -> Result<(), String> {
    outputs.files().try_for_each(|path| check_writable(path))
}

/// Opens the file for writing without changing its content, and removes it if it did not exist.
pub fn check_writable(path: &Path) -> Result<(), String> {
    if is_standard_output(path) {
        return Ok(());
    }
    let existed = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| format!("write {}: {error}", path.display()))?;
    if !existed {
        // If it cannot be removed, it will be overwritten.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_file_is_found_before_the_measurement() {
        let outputs = Outputs { html: Some("/nonexistent/r.html".into()), ..Outputs::default() };
        assert!(check(&outputs).unwrap_err().starts_with("write /nonexistent/r.html: No such file"));
        let dir = tempfile::tempdir().unwrap();
        let html = dir.path().join("r.html");
        check(&Outputs { html: Some(html.clone()), ..Outputs::default() }).unwrap();
        assert!(!html.exists(), "a check leaves no empty report");
        check(&Outputs { html: Some("-".into()), ..Outputs::default() }).unwrap();
    }
}
