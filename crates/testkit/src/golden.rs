//! Golden scripts: files with blocks of commands, each followed by the expected output.
//!
//! ```text
//! # a comment
//! a command
//! another command
//! ---
//! the output of both
//! ```
//!
//! The output extends to the next blank line. Set `UPDATE_SCRIPTS=1` to rewrite the files with the
//! current output. To create a script, write the commands with a line `---` after each block. A
//! command that panics fails the script; the panic is printed with the path and line.

use std::fs;
use std::path::Path;

/// Prints the position in a script if its command panics.
struct ScriptPlace<'a> {
    path: &'a Path,
    line: usize,
}

impl Drop for ScriptPlace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {}:{}", self.path.display(), self.line);
        }
    }
}

/// Runs every script in `dir`. `new` creates the function that executes the commands of a script.
pub fn run_all<R: FnMut(&str) -> String>(dir: &Path, new: impl Fn() -> R) {
    let is_update = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable directory").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scripts in {}", dir.display());
    let mut failures = Vec::new();
    for path in paths {
        let expected = fs::read_to_string(&path).expect("a readable script");
        let actual = executed(&path, &expected, new());
        if actual == expected {
            continue;
        }
        if is_update {
            fs::write(&path, actual).expect("a script that can be written");
            continue;
        }
        let mut lines = expected.lines().zip(actual.lines()).enumerate();
        let (number, (wanted, got)) =
            lines.find(|(_, (wanted, got))| wanted != got).unwrap_or((0, ("", "the lengths differ")));
        failures.push(format!("{}:{}\n  expected: {wanted}\n  got:      {got}", path.display(), number + 1));
    }
    assert!(failures.is_empty(), "UPDATE_SCRIPTS=1 accepts the present output\n{}", failures.join("\n"));
}

fn executed(path: &Path, script: &str, mut run: impl FnMut(&str) -> String) -> String {
    let mut place = ScriptPlace { path, line: 0 };
    let (mut result, mut output) = (String::new(), String::new());
    let mut lines = script.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        place.line = number + 1;
        result.push_str(line);
        result.push('\n');
        if line == "---" {
            lines.by_ref().take_while(|(_, line)| !line.is_empty()).for_each(drop);
            result.push_str(if output.is_empty() { "ok\n" } else { &output });
            result.push('\n');
            output.clear();
        } else if !line.is_empty() && !line.starts_with('#') {
            let lines = run(line);
            assert!(!lines.contains("\n\n"), "output with a blank line: {lines:?}");
            if !lines.is_empty() {
                output.push_str(lines.trim_end());
                output.push('\n');
            }
        }
    }
    assert!(output.is_empty(), "the last block has no line ---");
    result.truncate(result.trim_end().len());
    result.push('\n');
    result
}
