//! Checks the language of code and pages:
//!
//! - words that usually make a sentence vague,
//! - lines of code over 110 columns (wrapping of pages has joined commands into prose),
//! - in comments of code, phrases that this field hardly uses, and doc comments that open with a fragment.
//!
//! usage: language LIMITS FILE…
//!
//! `LIMITS` has a line `GROUP WORDS LINES PHRASES FRAGMENTS` for each group of files that still has some, with their
//! numbers. A group is a crate, or a file outside of crates. A number above its limit is a fault. Limits may only
//! fall: `UPDATE_LANGUAGE=1` lowers them to the numbers found. In Markdown, code blocks and tables are skipped.

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

/// Phrases of comments with an ordinary technical term in their place: *responds*, *rejects*, *in progress*,
/// *finished*, *immediately*, *latest*, *membership changes*, *omitted*.
const UNUSUAL: &[&str] = &[
    "another one",
    "answered",
    "answers",
    "asked",
    "asks",
    "at once",
    "begun",
    "change of",
    "changes of",
    "from now",
    "go on",
    "goes on",
    "has ended",
    "is looked at",
    "left out",
    "meanwhile",
    "next one",
    "one that",
    "refused",
    "refuses",
    "so many",
    "that wait",
    "that waits",
    "the newest",
    "those of",
    "those that",
    "under way",
    "what a",
    "what was",
];

/// First words of a doc comment that begins with a clause or a preposition instead of a noun phrase or a verb.
const FRAGMENTS: &[&str] =
    &["As", "It", "Not", "Of", "One that", "Such", "Those", "What", "Which", "Who", "Whose"];

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Counts {
    words: usize,
    lines: usize,
    phrases: usize,
    fragments: usize,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        *self = self.pairwise(other, |a, b| a + b);
    }

    fn exceeds(self, limit: Counts) -> bool {
        self.pairwise(limit, usize::max) != limit
    }

    fn pairwise(self, other: Counts, of: fn(usize, usize) -> usize) -> Counts {
        Counts {
            words: of(self.words, other.words),
            lines: of(self.lines, other.lines),
            phrases: of(self.phrases, other.phrases),
            fragments: of(self.fragments, other.fragments),
        }
    }
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
        let mut before = "";
        for (number, line) in prose(&file, &text) {
            let mut one = count(line);
            if file.ends_with(".md") {
                one.lines = 0;
            } else {
                one.add(count_comment(before, line));
            }
            before = line;
            counts.add(one);
            if one != Counts::default() {
                shown.entry(group.clone()).or_default().push(format!("{file}:{number}: {}", line.trim()));
            }
        }
    }
    let mut faults = 0;
    for (group, counts) in &found {
        let limit = limits.get(group).copied().unwrap_or_default();
        if counts.exceeds(limit) {
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
            let [group, words, lines, phrases, fragments] = fields[..] else {
                panic!("not five fields: {line}")
            };
            let number = |text: &str| text.parse().expect("a number");
            let (words, lines) = (number(words), number(lines));
            let (phrases, fragments) = (number(phrases), number(fragments));
            (group.to_owned(), Counts { words, lines, phrases, fragments })
        })
        .collect()
}

/// The limits, lowered to what was found. Groups without faults have no line.
fn lowered(limits: &BTreeMap<String, Counts>, found: &BTreeMap<String, Counts>) -> String {
    let mut text = String::from(
        "# Group, vague words, lines over 110 columns, unusual phrases, fragments: see language.rs. Limits may only fall.\n",
    );
    for (group, limit) in limits {
        let now = found.get(group).copied().unwrap_or_default();
        let now = now.pairwise(*limit, usize::min);
        if now != Counts::default() {
            let Counts { words, lines, phrases, fragments } = now;
            text.push_str(&format!("{group} {words} {lines} {phrases} {fragments}\n"));
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
    let text = spaced(line);
    let words = occurrences(&text, WORDS) + occurrences(&text, PHRASES);
    let lines = usize::from(line.chars().count() > COLUMNS_MAX);
    Counts { words, lines, ..Counts::default() }
}

/// Counts phrases in the comment of a line, and whether it opens a doc comment with a fragment. `before`: the line
/// before it.
fn count_comment(before: &str, line: &str) -> Counts {
    let Some((_, comment)) = line.split_once("//") else { return Counts::default() };
    let is_first = line.trim_start().starts_with("/// ") && !before.trim_start().starts_with("///");
    let opening = comment.trim_start_matches('/').trim_start();
    let opens_with = |start: &&str| {
        opening
            .strip_prefix(*start)
            .is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_alphanumeric()))
    };
    let fragments = usize::from(is_first && FRAGMENTS.iter().any(|start| opens_with(&start)));
    Counts { phrases: occurrences(&spaced(comment), UNUSUAL), fragments, ..Counts::default() }
}

/// The words of a line in lower case, with one space on each side.
fn spaced(line: &str) -> String {
    let lower = line.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| !word.is_empty()).fold(" ".to_owned(), |text, word| text + word + " ")
}

fn occurrences(text: &str, phrases: &[&str]) -> usize {
    let count_of = |phrase: &&str| -> usize {
        let wanted = format!(" {phrase} ");
        text.match_indices(' ').filter(|(at, _)| text[*at..].starts_with(&wanted)).count()
    };
    phrases.iter().map(count_of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_columns_are_counted() {
        let words = |words| Counts { words, ..Counts::default() };
        assert_eq!(count("Nobody is told, as ever."), words(3));
        assert_eq!(count("beside beside"), words(2));
        assert_eq!(count("beside_echo, besides, as everything was ever"), Counts::default());
        assert_eq!(count(&"─".repeat(110)), Counts::default());
        assert_eq!(count(&"─".repeat(111)), Counts { lines: 1, ..Counts::default() });
    }

    #[test]
    fn phrases_and_fragments_of_comments_are_counted() {
        let counts = |phrases, fragments| Counts { phrases, fragments, ..Counts::default() };
        assert_eq!(count_comment("", "    /// What a caller asks for goes on."), counts(3, 1));
        assert_eq!(count_comment("/// Returns the list.", "/// Of those that wait."), counts(2, 0));
        assert_eq!(count_comment("", "/// Offset of the block."), counts(0, 0));
        assert_eq!(count_comment("", "let answers = asked; // the newest"), counts(1, 0));
        assert_eq!(count_comment("", "let answers = asked;"), counts(0, 0));
    }

    #[test]
    fn code_blocks_and_tables_of_pages_are_left_out() {
        let text = "a\n```sh\nb\n```\nc\n| d |";
        assert_eq!(prose("README.md", text), [(1, "a"), (5, "c")]);
        assert_eq!(prose("crates/wal/src/lib.rs", text).len(), 6);
    }

    #[test]
    fn limits_only_fall() {
        let limits = limits("# comment\ncrates/a 3 1 9 4\ncrates/b 1 0 0 0\nc.md 0 2 0 0\n");
        let found = [("crates/a", 2, 5), ("crates/b", 0, 0), ("c.md", 1, 1), ("d.md", 7, 7)];
        let found = found.map(|(group, words, lines)| {
            (group.to_owned(), Counts { words, lines, phrases: 5, fragments: 5 })
        });
        let text = lowered(&limits, &found.into());
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            ["c.md 0 1 0 0", "crates/a 2 1 5 4"].map(str::to_owned)[..]
        );
    }

    #[test]
    fn files_of_a_crate_are_a_group() {
        assert_eq!(group("crates/wal/src/format/frame.rs"), "crates/wal");
        assert_eq!(group("docs/performance.md"), "docs/performance.md");
    }
}
