//! Checks the language of code and pages: words that usually make a sentence vague, and lines of code of at most
//! 110 columns. Lines of pages have any length: to wrap them has joined commands into prose.
//!
//! usage: language LIMITS FILE…
//!
//! `LIMITS` has a line `GROUP WORDS LINES` for each group of files that still has such words or lines, with their
//! numbers. A group is a crate, or a file outside of crates. A number above its limit is a fault. Limits may only
//! fall: with `UPDATE_LANGUAGE=1` they are lowered to what was found. In Markdown, code blocks and tables are left out.

use std::collections::BTreeMap;
use std::{env, fs};

const COLUMNS_MAX: usize = 110;

/// Each has a plain substitute, such as *next to*, *after*, *notified*, *any client*, *a separate file*.
const WORDS: &[&str] = &[
    "nobody",
    "whoever",
    "somebody",
    "whatever",
    "anybody",
    "everybody",
    "beside",
    "behind",
    "told",
    "tells",
];

/// The same, of two or three words.
const PHRASES: &[&str] = &["as ever", "of its own", "of their own", "of our own"];

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Counts {
    words: usize,
    lines: usize,
}

fn main() {
    let mut arguments = env::args().skip(1);
    let limits_file = arguments.next().expect("usage: language LIMITS FILE…");
    let limits = limits(&fs::read_to_string(&limits_file).expect("the file of limits"));
    let mut found: BTreeMap<String, Counts> = BTreeMap::new();
    let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in arguments {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("read {file}: {error}"));
        let group = group(&file);
        let counts = found.entry(group.clone()).or_default();
        for (number, line) in prose(&file, &text) {
            let mut one = count(line);
            one.lines *= usize::from(!file.ends_with(".md"));
            counts.words += one.words;
            counts.lines += one.lines;
            if one != Counts::default() {
                shown.entry(group.clone()).or_default().push(format!("{file}:{number}: {}", line.trim()));
            }
        }
    }
    let mut faults = 0;
    for (group, counts) in &found {
        let limit = limits.get(group).copied().unwrap_or_default();
        if counts.words > limit.words || counts.lines > limit.lines {
            faults += 1;
            println!("{group}: {counts:?}, over its limit of {limit:?}");
            shown[group].iter().take(20).for_each(|line| println!("  {line}"));
        }
    }
    if env::var("UPDATE_LANGUAGE").is_ok() {
        fs::write(&limits_file, lowered(&limits, &found)).expect("write the limits");
    }
    std::process::exit(i32::from(faults > 0));
}

fn limits(text: &str) -> BTreeMap<String, Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [group, words, lines] = fields[..] else { panic!("a limit is GROUP WORDS LINES: {line}") };
            let number = |text: &str| text.parse().expect("a number");
            (group.to_owned(), Counts { words: number(words), lines: number(lines) })
        })
        .collect()
}

/// The limits, lowered to what was found. Groups without faults have no line.
fn lowered(limits: &BTreeMap<String, Counts>, found: &BTreeMap<String, Counts>) -> String {
    let mut text = String::from(
        "# Group, vague words, lines over 110 columns: see language.rs. Limits may only fall.\n",
    );
    for (group, limit) in limits {
        let now = found.get(group).copied().unwrap_or_default();
        let now = Counts { words: now.words.min(limit.words), lines: now.lines.min(limit.lines) };
        if now != Counts::default() {
            text.push_str(&format!("{group} {} {}\n", now.words, now.lines));
        }
    }
    text
}

/// `crates/NAME` for files of crates, `fuzz` and `benches` for theirs; else the file.
fn group(file: &str) -> String {
    let parts: Vec<_> = file.split('/').collect();
    match parts[0] {
        "crates" => parts[..2].join("/"),
        "fuzz" | "benches" | ".ci" => parts[0].to_owned(),
        _ => file.to_owned(),
    }
}

/// The lines to check, with their numbers.
fn prose<'a>(file: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let is_markdown = file.ends_with(".md");
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = is_markdown && line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !(is_markdown && line.starts_with('|'))
    });
    lines.map(|(at, line)| (at + 1, line)).collect()
}

fn count(line: &str) -> Counts {
    let lower = line.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let text = format!(" {} ", words.join(" "));
    let phrases: usize = PHRASES.iter().map(|phrase| text.matches(&format!(" {phrase} ")).count()).sum();
    let words = words.iter().filter(|word| WORDS.contains(word)).count();
    Counts { words: words + phrases, lines: usize::from(line.chars().count() > COLUMNS_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_columns_are_counted() {
        assert_eq!(count("Nobody is told, as ever."), Counts { words: 3, lines: 0 });
        assert_eq!(count("beside_echo, besides, as everything was ever"), Counts::default());
        assert_eq!(count(&"─".repeat(110)), Counts::default());
        assert_eq!(count(&"─".repeat(111)), Counts { words: 0, lines: 1 });
    }

    #[test]
    fn code_blocks_and_tables_of_pages_are_left_out() {
        let text = "a\n```sh\nb\n```\nc\n| d |";
        assert_eq!(prose("README.md", text), [(1, "a"), (5, "c")]);
        assert_eq!(prose("crates/wal/src/lib.rs", text).len(), 6);
    }

    #[test]
    fn limits_only_fall() {
        let limits = limits("# comment\ncrates/a 3 1\ncrates/b 1 0\nc.md 0 2\n");
        let found = [("crates/a", 2, 5), ("crates/b", 0, 0), ("c.md", 1, 1), ("d.md", 7, 7)];
        let found = found.map(|(group, words, lines)| (group.to_owned(), Counts { words, lines }));
        let text = lowered(&limits, &found.into());
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            ["c.md 0 1", "crates/a 2 1"].map(str::to_owned)[..]
        );
    }

    #[test]
    fn files_of_a_crate_are_a_group() {
        assert_eq!(group("crates/wal/src/format/frame.rs"), "crates/wal");
        assert_eq!(group("docs/performance.md"), "docs/performance.md");
    }
}
