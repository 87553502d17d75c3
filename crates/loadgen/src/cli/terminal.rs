//! What is said to whoever started the program: reports on standard output, remarks beside them.

use std::error::Error;
use std::io::Write;
use std::path::Path;

/// Prints `text` as it is; a reader that went away is an error.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("write the report: {error}"))
}

#[expect(clippy::print_stderr, reason = "a remark beside the report")]
pub fn note(text: &str) {
    eprintln!("loadgen: {text}");
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| (*cause).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Writes a whole file, or says which.
pub fn write_file(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))
}
