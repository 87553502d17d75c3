//! Commands that were part of the server and are in `kvctl` now.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use process::command_line::{MAN, quoted};
use process::visible::visible;

const MOVED: [&str; 6] = ["import", "restore", "archive", "inspect", "member", "top"];

/// Returns the line of `kvctl` that does the same, if the first argument is such a command.
pub fn line(arguments: &[OsString]) -> Option<String> {
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let command = words.first().filter(|first| MOVED.contains(&first.as_str()));
    let Some(command) = command else {
        let is_moved = words.len() == 2 && words[0] == MAN && MOVED.contains(&words[1].as_str());
        return is_moved.then(|| format!("kvctl {MAN} {}", words[1]));
    };
    // `kvctl restore` reads archives; `import` read them as well.
    let is_archive = words.iter().any(|word| word.contains("s3://"));
    let command = if command == "import" && is_archive { "restore" } else { command };
    // Endpoints of `top` are metrics listeners. `--endpoints` is for client URLs everywhere.
    let renamed = |word: &String| match (command, word.strip_prefix("--endpoints")) {
        ("top", Some(rest)) if rest.is_empty() || rest.starts_with('=') => {
            format!("--metrics-endpoints{rest}")
        }
        _ => word.clone(),
    };
    let rest = words[1..].iter().map(renamed).map(|word| format!(" {}", quoted(&word)));
    Some(format!("kvctl {command}{}", rest.collect::<String>()))
}

/// Prints where the command is. Returns the exit status of an invalid command line.
pub fn print(line: &str) -> ExitCode {
    let _unwritten = writeln!(io::stderr(), "moved to: {}", visible(line));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_kvctl_does_the_same() {
        for (words, wanted) in [
            ("import --from snapshot.db --data-dir d", Some("kvctl import --from snapshot.db --data-dir d")),
            ("import --from=s3://b/p --data-dir=d", Some("kvctl restore --from=s3://b/p --data-dir=d")),
            ("restore --help", Some("kvctl restore --help")),
            ("member replace a b=http://h:1", Some("kvctl member replace a b=http://h:1")),
            ("top --endpoints a:1 --once", Some("kvctl top --metrics-endpoints a:1 --once")),
            ("top --endpoints=a:1", Some("kvctl top --metrics-endpoints=a:1")),
            ("archive --endpoints a:1 --to $d", Some("kvctl archive --endpoints a:1 --to '$d'")),
            ("inspect", Some("kvctl inspect")),
            ("man top", Some("kvctl man top")),
            ("man check-config", None),
            ("man", None),
            ("check-config", None),
            ("snapshot save f", None),
            ("--name import", None),
            ("", None),
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            assert_eq!(line(&words).as_deref(), wanted, "{words:?}");
        }
    }
}
