//! Reports on standard output, remarks on standard error.

use std::io::Write;
use std::path::Path;

/// Prints `text` unchanged; a closed pipe is an error.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("write the report: {error}"))
}

#[expect(clippy::print_stderr, reason = "a remark outside of the report")]
pub fn note(text: &str) {
    eprintln!("loadgen: {text}");
}

/// Writes a whole file. The error names it.
pub fn write_file(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))
}
