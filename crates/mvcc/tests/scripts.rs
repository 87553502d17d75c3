//! Golden scripts of the store, in `scripts/`. `testkit::golden` describes the files.
//!
//! One line is one command. Changes are requests with a separate revision, unless they are in one `request`:
//!
//!   put a=1 [lease=5]         del a | del a..c | del *         request put a=1; get a; range *; del b
//!   fill k 100 v*30           puts k000 to k099; `v*30` is 30 times v
//!   range a..c|a..|* [rev=2 limit=1 keys count]                hash [REV]      status      size      files
//!   item k=v | item k         items PREFIX                     compact REV
//!   end INDEX [TERM]          persist                          step | steps    one compaction step, or all
//!   crash                     store NAME                       options block=256 due=2000 full=6000 …
//!   export                    install NAME | stage NAME | finish | discard     NAME: an exported store
//!   pin a..c                  visit
//!
//! A pair is shown as key=value@create.mod.version+lease.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use mvcc::{
    CompactProgress, Error, Fetch, KeyRange, KeyValue, KeyValueRef, Maintainer, MemoryBackend, Options,
    PinnedRange, Previous, RangeOptions, RangeResult, RevisionWriter, Staged, Staging, Store, Writer,
};

#[test]
fn scripts_give_their_output() {
    testkit::golden::run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), || {
        let mut script = Script::default();
        move |line| script.command(line).unwrap_or_else(|error| format!("error: {error}"))
    });
}

struct Script {
    options: Options,
    stores: BTreeMap<String, Member>,
    name: String,
    /// Chunks of exported checkpoints, by the name of their store.
    exports: BTreeMap<String, Vec<Bytes>>,
}

struct Member {
    backend: MemoryBackend,
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    pinned: Option<PinnedRange>,
}

impl Default for Script {
    fn default() -> Self {
        let options = common::tiny_options();
        Script { options, stores: BTreeMap::new(), name: "one".to_owned(), exports: BTreeMap::new() }
    }
}

impl Script {
    fn member(&mut self) -> &mut Member {
        let options = self.options;
        let new = || Member::open(MemoryBackend::new(), options).unwrap();
        self.stores.entry(self.name.clone()).or_insert_with(new)
    }

    fn reopen(&mut self) -> Result<String, Error> {
        let backend = self.member().backend.clone();
        self.stores.remove(&self.name);
        let member = Member::open(backend, self.options)?;
        let status = member.status();
        self.stores.insert(self.name.clone(), member);
        Ok(status)
    }

    fn command(&mut self, line: &str) -> Result<String, Error> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "options" => rest.split(' ').for_each(|option| set_option(&mut self.options, option)),
            "store" => rest.clone_into(&mut self.name),
            "crash" => return self.reopen(),
            "export" => {
                let mut export = self.member().maintainer.export();
                let chunks = std::iter::from_fn(|| export.next(100).unwrap()).collect();
                self.exports.insert(self.name.clone(), chunks);
                return Ok(format!("revision {}, applied {}", export.revision(), export.applied().index));
            }
            "stage" | "install" => {
                let (chunks, options) = (self.exports[rest].clone(), self.options);
                let staged = receive(&self.member().backend, &chunks, &options)?;
                if name == "install" {
                    let applied = self.member().maintainer.install(staged)?;
                    return Ok(format!("installed {}", applied.index));
                }
            }
            "finish" | "discard" => {
                let backend = self.member().backend.clone();
                self.stores.remove(&self.name);
                if name == "finish" {
                    backend.finish_install().map(drop)?
                } else {
                    backend.discard_staged()?
                }
                self.stores.insert(self.name.clone(), Member::open(backend, self.options)?);
                return self.reopen();
            }
            _ => return self.member().command(name, rest),
        }
        Ok(String::new())
    }
}

impl Member {
    fn open(backend: MemoryBackend, options: Options) -> Result<Self, Error> {
        let (writer, store, maintainer) = mvcc::open(Box::new(backend.clone()), options)?;
        Ok(Member { backend, writer, store, maintainer, pinned: None })
    }

    fn status(&self) -> String {
        let Member { store, .. } = self;
        let (revision, compacted) = (store.revision(), store.compact_revision());
        format!("revision {revision}, compacted {compacted}, applied {}", store.applied().index)
    }

    fn command(&mut self, name: &str, rest: &str) -> Result<String, Error> {
        match name {
            "put" | "del" | "get" => self.request(&format!("{name} {rest}")),
            "request" => self.request(rest),
            "fill" => self.fill(rest),
            "range" => {
                let (range, at, options) = range_request(rest);
                self.store.range(&range, at, &options).map(|result| show_range(&result))
            }
            "hash" => {
                let hash = self.store.hash_kv(rest.parse().unwrap_or(0))?;
                let (at, compacted) = (hash.hash_revision, hash.compact_revision);
                Ok(format!("{:08x} at r{at}, compacted {compacted}", hash.hash))
            }
            "status" => Ok(self.status()),
            "size" => Ok(format!("{:?}", self.store.size())),
            "files" => Ok(format!("files {:?}", mvcc::Backend::files(&mut self.backend)?)),
            "item" => {
                let (key, value) =
                    rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
                self.writer.set_item(key.as_bytes(), value.map(str::as_bytes));
                Ok(String::new())
            }
            "items" => {
                let items = self.store.items(rest.as_bytes());
                let shown = items.iter().map(|(key, value)| format!("{}={}", show(key), show(value)));
                Ok(shown.collect::<Vec<_>>().join(" "))
            }
            "compact" => self.writer.compact(rest.parse().unwrap()).map(|()| String::new()),
            "end" => {
                let (index, term) = rest.split_once(' ').unwrap_or((rest, "1"));
                let applied = mvcc::LogPosition::new(index.parse().unwrap(), term.parse().unwrap());
                self.writer.end_entry(applied).map(|pressure| format!("{pressure:?}"))
            }
            "persist" => {
                let persisted = self.maintainer.persist()?;
                let (applied, revision) = (persisted.applied.index, persisted.revision);
                Ok(format!("applied {applied}, revision {revision}, {} blocks", persisted.blocks))
            }
            "step" => self.maintainer.compact_step(5).map(|progress| format!("{progress:?}")),
            "steps" => loop {
                match self.maintainer.compact_step(5)? {
                    CompactProgress::More => {}
                    progress => return Ok(format!("{progress:?}")),
                }
            },
            "pin" => {
                let (range, at, options) = range_request(rest);
                let measure = |kv: &KeyValueRef<'_>| kv.value.len() as u32;
                let pinned = self.store.pin_range(&range, at, options.limit, &(), measure)?;
                let shown = format!("{} of {} pairs", pinned.len(), pinned.count);
                self.pinned = Some(pinned);
                Ok(shown)
            }
            "visit" => {
                let pinned = self.pinned.as_ref().unwrap();
                let mut pairs = BTreeMap::new();
                pinned.visit(0..pinned.len(), |number, kv| drop(pairs.insert(number, show_pair(kv))))?;
                Ok(pairs.into_values().collect::<Vec<_>>().join(" "))
            }
            other => panic!("no such command: {other}"),
        }
    }

    /// Several operations of one revision.
    fn request(&mut self, operations: &str) -> Result<String, Error> {
        let (mut request, mut shown) = (self.writer.begin(), String::new());
        for operation in operations.split(';') {
            shown += &operate(&mut request, operation.trim())?;
        }
        Ok(format!("{shown}r{}", request.finish()))
    }

    fn fill(&mut self, rest: &str) -> Result<String, Error> {
        let words: Vec<&str> = rest.split(' ').collect();
        for number in 0..words[1].parse::<u32>().unwrap() {
            self.request(&format!("put {}{number:03}={}", words[0], words[2]))?;
        }
        Ok(format!("r{}", self.store.revision()))
    }
}

/// One operation of a request, and the line that it shows, if any.
fn operate(request: &mut RevisionWriter<'_>, operation: &str) -> Result<String, Error> {
    let (name, rest) = operation.split_once(' ').unwrap_or((operation, ""));
    Ok(match name {
        "put" => {
            let (pair, lease) = rest.split_once(" lease=").unwrap_or((rest, "0"));
            let (key, value) = pair.split_once('=').unwrap();
            request.put(key.as_bytes(), repeated(value).as_bytes(), lease.parse().unwrap());
            String::new()
        }
        "del" => {
            let deleted = request.delete_range(&keys(rest), Previous::Return)?;
            let previous: Vec<_> = deleted.previous.iter().map(show_kv).collect();
            format!("deleted {} [{}]\n", deleted.count, previous.join(" "))
        }
        "get" => format!("{}\n", request.get(rest.as_bytes())?.map_or("none".to_owned(), |kv| show_kv(&kv))),
        "range" => {
            let (range, at, options) = range_request(rest);
            format!("{}\n", show_range(&request.range(&range, at, &options)?))
        }
        other => panic!("no such operation: {other}"),
    })
}

fn receive(backend: &MemoryBackend, chunks: &[Bytes], options: &Options) -> Result<Staged, Error> {
    let mut staging = Staging::begin(Box::new(backend.incoming()), options)?;
    chunks.iter().try_for_each(|chunk| staging.add(chunk))?;
    staging.finish()
}

fn set_option(options: &mut Options, option: &str) {
    let (name, value) = option.split_once('=').unwrap();
    let value: usize = value.parse().unwrap();
    match name {
        "block" => options.block_bytes = value,
        "file" => options.block_file_bytes = value as u64,
        "due" => options.checkpoint_due_bytes = value,
        "full" => options.checkpoint_full_bytes = value,
        "dropped" => options.dropped_max = value,
        other => panic!("no such option: {other}"),
    }
}

fn range_request(rest: &str) -> (KeyRange, i64, RangeOptions) {
    let mut words = rest.split(' ');
    let range = keys(words.next().unwrap());
    let (mut at, mut options) = (0, RangeOptions::default());
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("rev", value) => at = value.parse().unwrap(),
            ("limit", value) => options.limit = value.parse().unwrap(),
            ("keys", _) => options.fetch = Fetch::KeysOnly,
            ("count", _) => options.fetch = Fetch::CountOnly,
            other => panic!("no such option: {other:?}"),
        }
    }
    (range, at, options)
}

fn keys(word: &str) -> KeyRange {
    match word.split_once("..") {
        _ if word == "*" => KeyRange::all(),
        Some((key, "")) => common::range(key, "\0"),
        Some((key, end)) => common::range(key, end),
        None => common::range(word, ""),
    }
}

/// `v*30` is 30 times v.
fn repeated(value: &str) -> String {
    match value.split_once('*') {
        Some((part, count)) => part.repeat(count.parse().unwrap()),
        None => value.to_owned(),
    }
}

fn show_range(result: &RangeResult) -> String {
    let kvs: Vec<_> = result.kvs.iter().map(show_kv).collect();
    let RangeResult { count, at, revision, .. } = result;
    format!("[{}] of {count} at r{at} of r{revision}", kvs.join(" "))
}

fn show_kv(kv: &KeyValue) -> String {
    let KeyValue { create_revision, mod_revision, version, lease, .. } = *kv;
    let (key, value) = (&kv.key, &kv.value);
    show_pair(&KeyValueRef { key, value, create_revision, mod_revision, version, lease })
}

fn show_pair(kv: &KeyValueRef<'_>) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!("+{}", kv.lease) };
    let value = if kv.value.len() > 20 { format!("<{} bytes>", kv.value.len()) } else { show(kv.value) };
    format!("{}={value}@{}.{}.{}{lease}", show(kv.key), kv.create_revision, kv.mod_revision, kv.version)
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
