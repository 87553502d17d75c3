//! Reports on standard output, remarks on standard error.

use super::flags::outputs::is_standard_output;
use std::io::{self, Write};
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

/// Writes a complete file, or to standard output if the path is `-`. The error names the file; on failure an
/// existing file is unchanged.
pub fn write_file(path: &Path, text: &str) -> Result<(), String> {
    if is_standard_output(path) {
        return print(text);
    }
    replace(path, text).map_err(|error| format!("write {}: {error}", path.display()))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A terminal or a pipe cannot be replaced by a rename.
    let is_file = std::fs::metadata(path).map_or(true, |metadata| metadata.is_file());
    if !is_file {
        return std::fs::write(path, text);
    }
    // Replaces the target of a symbolic link, not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // The random name prevents another user from placing a link there.
    name.push(format!(".{:016x}.new", rand::random::<u64>()));
    let new = path.with_file_name(name);
    let written = std::fs::File::create_new(&new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&new, &path));
    if written.is_err() {
        // If it cannot be removed, it stays.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Returns the first error, and logs the remaining ones.
pub fn first_error(attempts: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let mut errors: Vec<_> = attempts.into_iter().filter_map(Result::err).collect();
    for error in errors.iter().skip(1) {
        note(error);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("kept.json"), dir.path().join("link.json"));
        write_file(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
        // The directory does not exist.
        let error = write_file(&dir.path().join("missing/kept.json"), "x").unwrap_err();
        assert!(error.contains("missing/kept.json: No such file"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        assert!(write_file(Path::new("/dev/full"), "x").unwrap_err().contains("No space left"));
    }
}
