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
//!     … NAME cut|damaged|wrong     the last chunk is missing | a byte differs | this store's state is wrong
//!   pin a..c                  visit | unpin                    room BYTES      records     hashes
//!   unfinished put a=1        a request that is dropped        lease 5         wakes
//!   changes FROM [BYTES]      parts REV                        previous a@REV b@REV
//!   follow                    read [BYTES] | skip REV | unfollow
//!   history                   list | leave                     import          the history, into a new store
//!   recount NAME              flip KEY value|version|lease|kind                damage BYTE
//!
//! A pair is shown as key=value@create.mod.version+lease.

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mvcc::{
    Backend, Change, ChangeReader, Changes, CompactProgress, Error, Fetch, Flip, HistoryReader, Import,
    ImportedState, KeyRange, KeyValue, KeyValueRef, Maintainer, MemoryBackend, PinnedRange, Present,
    Previous, RangeOptions, RangeResult, RecountBounds, Revision, RevisionWriter, StagedStore, Staging,
    Store, StoreOptions, Writer,
};

/// Maximum number of pairs shown. Longer results are shown by their number of pairs, the first and the
/// last.
const SHOWN_MAX: usize = 20;
const BOUNDS: RecountBounds = RecountBounds { records: 7, raw_bytes: 500 };

#[test]
fn scripts_give_their_output() {
    testkit::golden::run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), || {
        let mut script = Script::default();
        move |line| script.command(line).unwrap_or_else(|error| format!("error: {error}"))
    });
}

struct Script {
    options: StoreOptions,
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
    follower: Option<ChangeReader>,
    history: Option<HistoryReader>,
    wakes: Arc<AtomicUsize>,
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
                let (from, how) = rest.split_once(' ').unwrap_or((rest, ""));
                let (chunks, options) = (spoiled(self.exports[from].clone(), how), self.options);
                let staged = receive(&self.member().backend, &chunks, &options)?;
                let present = if how == "wrong" { Present::Wrong } else { Present::Right };
                if name == "install" {
                    let applied = self.member().maintainer.install_over(staged, present)?;
                    return Ok(format!("installed {}", applied.index));
                }
            }
            "import" => {
                let (backend, options) = (MemoryBackend::new(), self.options);
                import(self.member().history.as_ref().unwrap(), &backend, &options)?;
                let imported = Member::open(backend, options)?;
                let status = imported.status();
                self.stores.insert(rest.to_owned(), imported);
                return Ok(status);
            }
            "recount" => {
                self.member();
                return recount(&self.stores[&self.name].store, &self.stores[rest].store);
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
    fn open(backend: MemoryBackend, options: StoreOptions) -> Result<Self, Error> {
        let (writer, store, maintainer) = mvcc::open(Box::new(backend.clone()), options)?;
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let is_first = store.wake_with(Arc::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        assert!(is_first && !store.wake_with(Arc::new(|| ())), "a store has one listener");
        Ok(Member { backend, writer, store, maintainer, pinned: None, follower: None, history: None, wakes })
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
            "unfinished" => {
                let shown = operate(&mut self.writer.begin(), rest)?;
                Ok(format!("{shown}r{}", self.store.revision()))
            }
            "item" => {
                let (key, value) =
                    rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
                self.writer.set_item(key.as_bytes(), value.map(str::as_bytes));
                Ok(String::new())
            }
            "items" => {
                let items = self.store.items(rest.as_bytes());
                let shown = items.iter().map(|(key, value)| format!("{}={}", show(key), show(value)));
                Ok(joined(shown))
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
            other => self.read(other, rest),
        }
    }

    /// Runs commands that only read or pin.
    fn read(&mut self, name: &str, rest: &str) -> Result<String, Error> {
        let bytes_max = |text: &str| text.parse().unwrap_or(1 << 20);
        match name {
            "size" => Ok(format!("{:?}", self.store.size())),
            "files" => Ok(format!("files {:?}", self.backend.files()?)),
            "records" => Ok(self.store.records().to_string()),
            "room" => Ok(self.store.has_room(rest.parse().unwrap()).to_string()),
            "wakes" => Ok(self.wakes.swap(0, Ordering::SeqCst).to_string()),
            "lease" => {
                Ok(joined(self.store.keys_of_lease(rest.parse().unwrap(), &())?.iter().map(|key| show(key))))
            }
            "hashes" => {
                let hashes = self.store.compaction_hashes();
                Ok(joined(hashes.iter().map(|hash| format!("{:08x} at r{}", hash.hash, hash.hash_revision))))
            }
            "changes" => {
                let (from, bytes) = rest.split_once(' ').unwrap_or((rest, ""));
                let changes = self.store.changes(from.parse().unwrap(), bytes_max(bytes))?;
                Ok(show_changes(&changes))
            }
            "parts" => {
                let (mut next, mut parts) = (Some(Revision::first_of(rest.parse().unwrap())), Vec::new());
                while let Some(from) = next {
                    let part = self.store.changes_within(from)?;
                    parts.push(joined(part.changes.iter().map(show_change)));
                    next = part.next;
                }
                Ok(parts.join("\n"))
            }
            "previous" => {
                let events: Vec<_> = rest.split(' ').map(|event| event.split_once('@').unwrap()).collect();
                let events: Vec<_> =
                    events.iter().map(|(key, main)| (key.as_bytes(), main.parse().unwrap())).collect();
                let pairs = self.store.previous(&events)?;
                Ok(joined(pairs.iter().map(|pair| pair.as_ref().map_or("none".to_owned(), show_kv))))
            }
            "flip" => {
                let (key, what) = rest.split_once(' ').unwrap();
                let flip = match what {
                    "value" => Flip::Value,
                    "version" => Flip::Version,
                    "lease" => Flip::Lease,
                    "kind" => Flip::Kind,
                    other => panic!("no such part: {other}"),
                };
                Ok(self.store.flip(key.as_bytes(), flip).to_string())
            }
            "damage" => {
                let (first, at) = (self.backend.files()?[0], rest.parse().unwrap());
                self.backend.open_file(first)?.write_at(b"?", at).unwrap();
                Ok(String::new())
            }
            _ => self.pin(name, rest),
        }
    }

    fn pin(&mut self, name: &str, rest: &str) -> Result<String, Error> {
        match name {
            "follow" => Ok(format!("next r{}", self.follower.insert(self.store.follow()).next())),
            "read" => {
                let follower = self.follower.as_mut().unwrap();
                let changes = follower.changes(rest.parse().unwrap_or(1 << 20))?;
                follower.advance(changes.through() + 1);
                Ok(show_changes(&changes))
            }
            "skip" => {
                self.follower.as_mut().unwrap().advance(rest.parse().unwrap());
                Ok(String::new())
            }
            "unfollow" => {
                self.follower = None;
                Ok(String::new())
            }
            "history" => {
                let history = self.history.insert(self.store.pin_history());
                let (revision, compacted) = (history.revision(), history.compact_revision());
                Ok(format!("revision {revision}, compacted {compacted}"))
            }
            "list" => {
                let (mut lines, mut next) = (Vec::new(), HistoryReader::START);
                while let Some(part) = self.history.as_ref().unwrap().part_from(next)? {
                    lines.push(joined(part.changes().map(show_change)));
                    next = part.next();
                }
                Ok(lines.join("\n"))
            }
            "leave" => {
                self.history = None;
                Ok(String::new())
            }
            "unpin" => {
                self.pinned = None;
                Ok(String::new())
            }
            "pin" => {
                let (range, at, options) = range_request(rest);
                let measure = |kv: &KeyValueRef<'_>| kv.value.len() as u32;
                let pinned = self.store.pin_range(&range, at, options.limit, 0, &(), measure)?;
                let shown = format!("{} of {} pairs", pinned.len(), pinned.count);
                self.pinned = Some(pinned);
                Ok(shown)
            }
            "visit" => {
                let pinned = self.pinned.as_ref().unwrap();
                let mut pairs = BTreeMap::new();
                pinned.visit(0..pinned.len(), |number, kv| drop(pairs.insert(number, show_pair(kv))))?;
                Ok(joined(pairs.into_values()))
            }
            other => panic!("no such command: {other}"),
        }
    }

    /// Runs several operations at one revision.
    fn request(&mut self, operations: &str) -> Result<String, Error> {
        let (mut request, mut shown) = (self.writer.begin(), String::new());
        for operation in operations.split(';') {
            shown += &operate(&mut request, operation.trim())?;
        }
        Ok(format!("{shown}r{}", request.finish()))
    }

    fn fill(&mut self, rest: &str) -> Result<String, Error> {
        let words: Vec<&str> = rest.split(' ').collect();
        let width = words[1].len().max(3);
        for number in 0..words[1].parse::<u32>().unwrap() {
            self.request(&format!("put {}{number:0width$}={}", words[0], words[2]))?;
        }
        Ok(format!("r{}", self.store.revision()))
    }
}

/// Runs an operation of a request, and returns its output.
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
            format!("deleted {} [{}]\n", deleted.count, show_kvs(&deleted.previous))
        }
        "get" => format!("{}\n", request.get(rest.as_bytes())?.map_or("none".to_owned(), |kv| show_kv(&kv))),
        "range" => {
            let (range, at, options) = range_request(rest);
            format!("{}\n", show_range(&request.range(&range, at, &options)?))
        }
        other => panic!("no such operation: {other}"),
    })
}

fn receive(backend: &MemoryBackend, chunks: &[Bytes], options: &StoreOptions) -> Result<StagedStore, Error> {
    let mut staging = Staging::begin(Box::new(backend.incoming()), options)?;
    chunks.iter().try_for_each(|chunk| staging.add(chunk))?;
    staging.finish()
}

/// Changes the chunks for a receiver.
fn spoiled(mut chunks: Vec<Bytes>, how: &str) -> Vec<Bytes> {
    match how {
        "cut" => drop(chunks.pop()),
        "damaged" => {
            let middle = chunks.len() / 2;
            let mut bytes = chunks[middle].to_vec();
            bytes[0] ^= 1;
            chunks[middle] = bytes.into();
        }
        _ => {}
    }
    chunks
}

fn import(history: &HistoryReader, backend: &MemoryBackend, options: &StoreOptions) -> Result<(), Error> {
    let mut import = Import::begin(Box::new(backend.clone()), options)?;
    history.items().iter().try_for_each(|(key, value)| import.item(key, value))?;
    let mut next = HistoryReader::START;
    while let Some(part) = history.part_from(next)? {
        part.changes().try_for_each(|change| import.change(change))?;
        next = part.next();
    }
    let (revision, compact_revision) = (history.revision(), history.compact_revision());
    import.finish(ImportedState { applied: history.applied(), revision, compact_revision }).map(drop)
}

/// Counts how `other` compares for the spans of `one`.
fn recount(one: &Store, other: &Store) -> Result<String, Error> {
    let (mut found, mut pass) = (BTreeMap::new(), one.recount_pass());
    while let Some(span) = one.next_span(&mut pass, BOUNDS) {
        let (here, there) = (one.recount(&span, &())?, other.recount(&span, &())?);
        let verdict = match there {
            _ if here == there => "equal".to_owned(),
            mvcc::RecountAnswer::Digest(_) => "different".to_owned(),
            other => format!("{other:?}"),
        };
        *found.entry(verdict).or_insert(0) += 1;
    }
    Ok(joined(found.iter().map(|(verdict, count)| format!("{count} {verdict}"))))
}

fn set_option(options: &mut StoreOptions, option: &str) {
    let (name, value) = option.split_once('=').unwrap();
    let value: usize = value.parse().unwrap();
    match name {
        "block" => options.block_bytes = value,
        "file" => options.block_file_bytes = value as u64,
        "due" => options.checkpoint_due_bytes = value,
        "full" => options.checkpoint_full_bytes = value,
        "dropped" => options.dropped_max = value,
        "cache" => options.cache_bytes = value as u64,
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

fn repeated(value: &str) -> String {
    match value.split_once('*') {
        Some((part, count)) => part.repeat(count.parse().unwrap()),
        None => value.to_owned(),
    }
}

fn show_range(result: &RangeResult) -> String {
    let RangeResult { count, at, revision, .. } = result;
    format!("[{}] of {count} at r{at} of r{revision}", show_kvs(&result.kvs))
}

fn show_kvs(kvs: &[KeyValue]) -> String {
    match kvs {
        [first, .., last] if kvs.len() > SHOWN_MAX => {
            assert!(kvs.is_sorted_by(|left, right| left.key < right.key));
            format!("{} pairs: {} … {}", kvs.len(), show_kv(first), show_kv(last))
        }
        _ => joined(kvs.iter().map(show_kv)),
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

fn show_changes(changes: &Changes) -> String {
    let shown = joined(changes.iter().map(show_change));
    format!("[{shown}] to r{} of r{}", changes.through(), changes.revision())
}

fn show_change(change: Change<'_>) -> String {
    let Revision { main, sub } = change.revision();
    let what = match change {
        Change::Put { kv, .. } => show_pair(&kv),
        Change::Delete { key, .. } => format!("-{}", show(key)),
    };
    if sub == 0 { format!("r{main} {what}") } else { format!("r{main}.{sub} {what}") }
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
