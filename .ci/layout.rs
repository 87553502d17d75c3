//! Checks the layout of the crates: no cycle between files or folders.
//!
//! usage: layout CRATE_DIR…
//!
//! A file depends on the files that define the names in its `use` items and in its `crate::`, `self::` and `super::`
//! paths. Names are followed through re-exports, so a folder's `mod.rs` may re-export what its files define. Tests are
//! left out. Dependencies count between the entries of the folder that the two files have in common: files and
//! subfolders there must not form a cycle. That excludes cycles between files and between folders.
//!
//! Not seen: calls of methods and uses of fields, which need no import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let mut count = 0;
    for dir in env::args().skip(1) {
        for fault in check(Path::new(&dir)) {
            println!("{dir}: {fault}");
            count += 1;
        }
    }
    std::process::exit(i32::from(count > 0));
}

/// What is wrong with the layout of a crate.
fn check(dir: &Path) -> Vec<String> {
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| dir.join(root));
    roots.iter().filter(|root| root.exists()).flat_map(|root| Crate::load(root).faults()).collect()
}

/// A module path below the crate root.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

struct Module {
    tokens: Vec<String>,
    /// `use` items, one for each name.
    uses: Vec<Use>,
    /// Names of the items that the module defines.
    defined: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Use {
    path: ModulePath,
    /// The name that it brings in; `*` for all names.
    name: String,
    is_reexport: bool,
}

impl Crate {
    fn load(root: &Path) -> Self {
        let mut found = Crate::default();
        let src = root.parent().expect("a root is in a directory");
        found.add(Vec::new(), root.to_owned(), src.to_owned());
        found
    }

    /// Adds a module and its submodules, which are in `dir`.
    fn add(&mut self, path: ModulePath, file: PathBuf, dir: PathBuf) {
        let source =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("read {}: {error}", file.display()));
        let (uses, tokens) = split_uses(without_tests(tokens(&source)));
        let mut defined = BTreeSet::new();
        for (at, token) in tokens.iter().enumerate() {
            let next = |after: usize| tokens.get(at + after).map_or("", String::as_str);
            match token.as_str() {
                "mod" if next(2) == ";" => {
                    let (name, mut path) = (next(1).to_owned(), path.clone());
                    path.push(name.clone());
                    let own = [dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")];
                    let own = own.into_iter().find(|file| file.exists());
                    let own = own.unwrap_or_else(|| panic!("{}: no file of module {name}", file.display()));
                    self.add(path, own, dir.join(&name));
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "macro_rules" => {
                    defined.insert(next(if next(1) == "!" { 2 } else { 1 }).to_owned());
                }
                _ => {}
            }
        }
        self.modules.insert(path, Module { tokens, uses, defined });
    }

    fn faults(&self) -> Vec<String> {
        // By folder: entry, the entry that it depends on, the files that show it.
        let mut folders: BTreeMap<ModulePath, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let from = self.place(path);
            for target in self.dependencies(path, module) {
                let to = self.place(&target);
                let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                if from != to {
                    let shown = format!("{} uses {}", from.join("/"), to.join("/"));
                    let folder = folders.entry(from[..common].to_vec()).or_default();
                    let entry = folder.entry(from[common].clone()).or_default();
                    entry.entry(to[common].clone()).or_insert(shown);
                }
            }
        }
        let mut faults = Vec::new();
        for (folder, entries) in &folders {
            if let Some(cycle) = cycle(entries) {
                let steps = cycle.windows(2).map(|step| entries[&step[0]][&step[1]].as_str());
                let steps: Vec<_> = steps.collect();
                let (folder, cycle) = (folder.join("/"), cycle.join(" -> "));
                faults.push(format!("cycle in src/{folder}: {cycle} ({})", steps.join("; ")));
            }
        }
        faults
    }

    /// Folders and file of a module. A module with submodules is a folder.
    fn place(&self, path: &ModulePath) -> ModulePath {
        let children = self.modules.range(path.clone()..).nth(1);
        let is_folder = children.is_some_and(|(child, _)| child.starts_with(path));
        let mut place = path.clone();
        if is_folder {
            place.push("mod.rs".to_owned());
        }
        place
    }

    /// Modules that define the names which a module uses.
    fn dependencies(&self, path: &ModulePath, module: &Module) -> BTreeSet<ModulePath> {
        let used = |item: &&Use| !item.is_reexport || module.tokens.contains(&item.name);
        let named = module.uses.iter().filter(used).map(|item| item.path.clone());
        let written = paths(&module.tokens);
        named.chain(written).filter_map(|name| self.resolve(path, &name, 0)).filter(|to| to != path).collect()
    }

    /// The module that defines what `name` means in the module at `path`; `None` if it is no name of this crate.
    fn resolve(&self, path: &ModulePath, name: &[String], depth: usize) -> Option<ModulePath> {
        let (mut at, mut rest) = match name.first()?.as_str() {
            "crate" => (Vec::new(), &name[1..]),
            "self" => (path.clone(), &name[1..]),
            "super" => (path[..path.len().checked_sub(1)?].to_vec(), &name[1..]),
            first => {
                let child = [path.as_slice(), &[first.to_owned()]].concat();
                (self.modules.contains_key(&child).then(|| path.clone())?, name)
            }
        };
        while let Some((segment, after)) = rest.split_first() {
            let child = [at.as_slice(), std::slice::from_ref(segment)].concat();
            if segment == "super" {
                at.pop()?;
            } else if self.modules.contains_key(&child) {
                at = child;
            } else {
                let module = &self.modules[&at];
                if depth > 16 || module.defined.contains(segment) {
                    return Some(at);
                }
                let named = module.uses.iter().find(|item| item.name == *segment);
                let target = named.and_then(|item| self.resolve(&at, &item.path, depth + 1));
                let all = || module.uses.iter().filter(|item| item.name == "*");
                let in_all = || {
                    let mut targets = all().filter_map(|item| self.resolve(&at, &item.path, depth + 1));
                    targets.find(|target| self.modules[target].defined.contains(segment))
                };
                return Some(target.or_else(in_all).unwrap_or(at));
            }
            rest = after;
        }
        Some(at)
    }
}

/// A cycle in a graph, its first entry repeated at the end.
fn cycle(graph: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    fn visit(
        at: &str,
        graph: &BTreeMap<String, BTreeMap<String, String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = way.iter().position(|entry| entry == at) {
            return Some([&way[start..], &[at.to_owned()]].concat());
        }
        if done.contains(at) {
            return None;
        }
        way.push(at.to_owned());
        let found = graph.get(at).and_then(|next| next.keys().find_map(|to| visit(to, graph, way, done)));
        way.pop();
        done.insert(at.to_owned());
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| visit(start, graph, &mut Vec::new(), &mut done))
}

/// Identifiers, `::` and single characters of a source text. Comments, literals and lifetimes are left out.
fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_word = |char: &char| char.is_alphanumeric() || *char == '_';
    while at < text.len() {
        let next = |after: usize| text.get(at + after).copied().unwrap_or('\0');
        match (text[at], next(1)) {
            ('/', '/') => at += text[at..].iter().take_while(|char| **char != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                while at < text.len() {
                    match (text[at], text.get(at + 1)) {
                        ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
                        ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
                        _ => at += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            ('"', _) => at = string_end(&text, at + 1),
            ('r', '"' | '#') if raw_hashes(&text, at + 1).is_some() => {
                let hashes = raw_hashes(&text, at + 1).expect("just found");
                let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                at += hashes + 2;
                while at < text.len() && !text[at..].starts_with(&end) {
                    at += 1;
                }
                at += end.len();
            }
            ('\'', '\\') => {
                at += 3;
                at += text[at..].iter().take_while(|char| **char != '\'').count() + 1;
            }
            ('\'', _) if next(2) == '\'' => at += 3,
            ('\'', _) => at += 1 + text[at + 1..].iter().take_while(|char| is_word(char)).count(),
            (':', ':') => {
                tokens.push("::".to_owned());
                at += 2;
            }
            (char, _) if is_word(&char) => {
                let word: String = text[at..].iter().take_while(|char| is_word(char)).collect();
                at += word.chars().count();
                // The prefix of a literal is no name.
                let is_prefix =
                    matches!(word.as_str(), "b" | "br" | "c") && matches!(text.get(at), Some('"' | '\''));
                if !is_prefix {
                    tokens.push(word);
                }
            }
            (char, _) => {
                if !char.is_whitespace() {
                    tokens.push(char.to_string());
                }
                at += 1;
            }
        }
    }
    tokens
}

/// The position after a string literal.
fn string_end(text: &[char], mut at: usize) -> usize {
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Hashes before the quote of a raw string.
fn raw_hashes(text: &[char], at: usize) -> Option<usize> {
    let hashes = text[at..].iter().take_while(|char| **char == '#').count();
    (text.get(at + hashes) == Some(&'"')).then_some(hashes)
}

/// Leaves out the items with a `cfg` attribute that names `test`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if tokens[at..].starts_with(&["#", "[", "cfg", "("].map(str::to_owned)) {
            let end = group_end(&tokens, at + 1);
            if tokens[at..end].iter().any(|token| token == "test") {
                at = item_end(&tokens, end);
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// The position after the bracket that closes the one at `at`.
fn group_end(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (position, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return position + 1;
        }
    }
    tokens.len()
}

/// The position after the item, statement, field or variant at `at`, its attributes included.
fn item_end(tokens: &[String], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" | "," => return at + 1,
            "}" => return at,
            "{" => return group_end(tokens, at),
            "(" | "[" => at = group_end(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// The `use` items, and the tokens without them.
fn split_uses(tokens: Vec<String>) -> (Vec<Use>, Vec<String>) {
    let (mut uses, mut rest, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", |before| tokens[before].as_str());
        if tokens[at] != "use" || !matches!(before, "" | ";" | "}" | "{" | "]" | "pub" | ")") {
            rest.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = at + tokens[at..].iter().take_while(|token| *token != ";").count();
        let is_reexport = matches!(before, "pub" | ")");
        use_tree(&tokens[at + 1..end], &[], &mut |path, name| {
            uses.push(Use { path: path.to_vec(), name: name.to_owned(), is_reexport });
        });
        at = end;
    }
    (uses, rest)
}

/// Finds the names in a tree like `a::{b, c::D as E, f::*}`.
fn use_tree(tokens: &[String], before: &[String], found: &mut dyn FnMut(&[String], &str)) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => at += 1,
            "{" => {
                let end = group_end(tokens, at);
                let (mut start, inner) = (at + 1, end - 1);
                for position in at + 1..=inner {
                    let open = tokens[at + 1..position].iter().filter(|token| *token == "{").count();
                    let closed = tokens[at + 1..position].iter().filter(|token| *token == "}").count();
                    if position == inner || (tokens[position] == "," && open == closed) {
                        use_tree(&tokens[start..position], &path, found);
                        start = position + 1;
                    }
                }
                return;
            }
            "as" => return found(&path, &tokens[at + 1]),
            "*" => return found(&path, "*"),
            "self" if !path.is_empty() => at += 1,
            segment => {
                path.push(segment.to_owned());
                at += 1;
            }
        }
    }
    if path.len() > before.len() || tokens.first().is_some_and(|token| token == "self") {
        let name = path.last().expect("not empty").clone();
        found(&path, &name);
    }
}

/// Paths with more than one segment.
fn paths(tokens: &[String]) -> Vec<ModulePath> {
    let is_name = |token: &String| token.starts_with(|char: char| char.is_alphabetic() || char == '_');
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_start = is_name(&tokens[at]) && (at == 0 || tokens[at - 1] != "::");
        if is_start && tokens.get(at + 1).is_some_and(|token| token == "::") {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|token| token == "::")
                && tokens.get(at + 2).is_some_and(is_name)
            {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            paths.push(path);
        }
        at += 1;
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a crate with these files.
    fn faults(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let dir = env::temp_dir().join(format!("layout-{}-{name}", std::process::id()));
        for (path, source) in files {
            let path = dir.join("src").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, source).unwrap();
        }
        let faults = check(&dir);
        fs::remove_dir_all(dir).unwrap();
        faults
    }

    const FACADE: &str = "mod one; mod two; pub(crate) use one::One; pub(crate) use self::two::{Two};";

    #[test]
    fn a_facade_its_files_and_their_tests_are_no_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::One;"),
            ("a/mod.rs", FACADE),
            (
                "a/one.rs",
                "pub struct One; // use super::Two;\n#[cfg(test)] mod tests { use super::super::Two; }",
            ),
            (
                "a/two.rs",
                "use super::One; pub struct Two(One, &'static str); const X: &str = \"crate::b::B\";",
            ),
            ("b.rs", "use crate::a::{One, Two as Other}; pub struct B(One, Other);"),
        ];
        assert_eq!(faults("facade", &files), Vec::<String>::new());
    }

    #[test]
    fn cycles_of_files_and_of_folders_are_found() {
        let of_files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", FACADE),
            ("a/one.rs", "pub struct One(super::two::Two);"),
            ("a/two.rs", "use super::One; pub struct Two(Box<One>);"),
        ];
        let found = faults("files", &of_files);
        assert!(found.len() == 1 && found[0].contains("one -> two -> one"), "{found:?}");
        let of_folders = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", FACADE),
            ("a/one.rs", "pub struct One;"),
            ("a/two.rs", "use crate::b; pub struct Two(b::B);"),
            ("b.rs", "use crate::a::One; pub struct B(One);"),
        ];
        let found = faults("folders", &of_folders);
        assert!(found.len() == 1 && found[0].contains("a -> b -> a"), "{found:?}");
    }

    #[test]
    fn a_folder_that_uses_its_own_facade_is_a_cycle() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod one; pub use one::One; pub struct Own(One);"),
            ("a/one.rs", "pub struct One(Option<Box<super::Own>>);"),
        ];
        let found = faults("own", &files);
        assert!(found.len() == 1 && found[0].contains("mod.rs -> one -> mod.rs"), "{found:?}");
    }
}
