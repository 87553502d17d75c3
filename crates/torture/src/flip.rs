//! Changes single bytes of a real data directory: corruption must never be accepted as valid data.
//!
//! ```text
//!   a member lived and was stopped ─▶ its directory ─┬─ log: each byte ─────────▶ wal::open ────────┐
//!                                                    ├─ store: each byte ───────▶ mvcc::open ───────┤ same data,
//!                                                    ├─ checkpoint on its way ──▶ mvcc::Staging ────┤ or refused
//!                                                    └─ a sample of all files ──▶ the real program ─┘
//! ```
//!
//! * A directory that opens must contain exactly the original data: every entry of the log, every key with
//!   the revisions of its history. Bytes without meaning (preallocated space, file names) may change
//!   unnoticed, and are counted separately.
//! * The log was closed cleanly, so not even its last group may count as a torn tail.
//! * The flipped bit rotates with the position.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mvcc::{KeyRange, KeyValue, MemoryBackend, RangeOptions, SledBackend, Staging};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::testing::{Crash, SimFs};
use wal::{Fs, LogIndex, OwnedEntry, Wal};

use crate::bench::{Environment, copy, say};
use crate::clients::client::MemberClient;
use crate::clients::workload::{AfterFailure, Workload};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace};
use crate::report::ExperimentReport;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const LOAD: Duration = Duration::from_millis(400);
const CHUNK_BYTES: usize = 64 << 10;
const LOG: &str = "/wal";

/// Options of the experiment. One in so many bytes is flipped per kind of file; 1 flips all of them.
#[derive(Clone, Copy, Debug)]
pub struct FlipOptions {
    pub log_every: u64,
    pub store_every: u64,
    pub stream_every: u64,
    /// Number of starts of the real program on a corrupted directory.
    pub starts: u64,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlipResult {
    Refused,
    /// Opened with the original data.
    Same,
    /// Opened with different data.
    Accepted,
}

pub fn run(bench: &Environment, order: &FlipOptions) -> Result<ExperimentReport> {
    let mut report = ExperimentReport::default();
    let scratch = bench.directory("flip")?;
    let place = MemberPlace::alone(&bench.server, scratch.join("d"), bench.ports(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.or_say("start a runtime")?;
    runtime.block_on(live(&place, order.seed))?;
    flip_log(&place.data_dir.join("wal"), order.log_every, &mut report)?;
    flip_stream(&place.data_dir.join("store"), scratch.path(), order.stream_every, &mut report)?;
    flip_store(&place.data_dir.join("store"), scratch.path(), order.store_every, &mut report)?;
    runtime.block_on(flip_and_start(&place, scratch.path(), order, &mut report))?;
    Ok(report)
}

/// Runs a member that writes, compacts, checkpoints and is stopped.
async fn live(place: &MemberPlace, seed: u64) -> Result<()> {
    let process = place.start(&[])?;
    tokio::task::block_in_place(|| member::wait_ready(&process))?;
    let workload = Workload {
        seed,
        life: 0,
        clients: 4,
        big: 0.005,
        ports: vec![place.client_port],
        after_failure: AfterFailure::End,
        probes_every: None,
        position: std::sync::Arc::new(|| 0),
    };
    let running = workload.start();
    tokio::time::sleep(LOAD).await;
    running.finish().await;
    process.terminate();
    let end = tokio::task::block_in_place(|| member::wait_end(process))?;
    if end.status.success() {
        Ok(())
    } else {
        Err(ExperimentError::new(format!("did not stop well: {}", end.said)))
    }
}

fn count(report: &mut ExperimentReport, what: &str, at: &str, verdict: FlipResult) {
    match verdict {
        FlipResult::Refused => report.count(&format!("{what} refused")),
        FlipResult::Same => report.count(&format!("{what} without a meaning")),
        FlipResult::Accepted => {
            report.count(&format!("{what} ACCEPTED"));
            report.violation(at, "silently accepted".to_owned());
        }
    }
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1 << (at % 8);
    bytes
}

/// Returns every `every`-th position.
fn positions(bytes: usize, every: u64) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(usize::try_from(every.max(1)).unwrap_or(usize::MAX))
}

// ------------------------------------------------------------------------------------------------------------------
// log

type Log = (Option<Vec<u8>>, Vec<OwnedEntry>);

fn flip_log(dir: &Path, every: u64, report: &mut ExperimentReport) -> Result<()> {
    let fs = SimFs::new();
    fs.create_dir(Path::new(LOG)).or_say("make a directory in memory")?;
    let mut segments = Vec::new();
    for (name, bytes) in files(dir)? {
        let path = Path::new(LOG).join(&name);
        let file = fs.create(&path).attempt("create", &path)?;
        wal::File::write_at(&file, 0, &bytes).attempt("write", &path)?;
        segments.push((path, bytes));
    }
    let intact = || fs.crashed(Crash::Kill, &mut || true);
    let truth = read_log(intact()).ok_or_else(|| ExperimentError::new("the log does not open as it is"))?;
    for (path, bytes) in &segments {
        for at in positions(bytes.len(), every) {
            let fs = intact();
            fs.damage(path, |bytes| bytes[at] ^= 1 << (at % 8));
            let verdict = match read_log(fs) {
                None => FlipResult::Refused,
                Some(found) if found == truth => FlipResult::Same,
                Some(_) => FlipResult::Accepted,
            };
            count(report, "log", &format!("{} at {at}", path.display()), verdict);
        }
        say(&format!("log: {} of {} bytes, {} entries", path.display(), bytes.len(), truth.1.len()));
    }
    Ok(())
}

/// Reads everything that a start would read from the log; `None` if it fails.
fn read_log(fs: SimFs) -> Option<Log> {
    let options = wal::WalOptions { segment_bytes: wal::WalOptions::SEGMENT_BYTES, salt: [7; 16] };
    let (log, recovery) = Wal::open(fs, Path::new(LOG), options).ok()?;
    let reader = log.reader();
    let mut entries: Vec<OwnedEntry> = Vec::new();
    let mut next = recovery.start.index.0 + 1;
    while next <= recovery.last.index.0 {
        entries.extend(reader.read(LogIndex(next), 1 << 20).ok()?);
        next = entries.last()?.index.0 + 1;
    }
    Some((recovery.state, entries))
}

fn files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).attempt("list", dir)? {
        let path = entry.attempt("list", dir)?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, std::fs::read(&path).attempt("read", &path)?));
        }
    }
    files.sort();
    Ok(files)
}

// ----------------------------------------------------------------------------------------------------------------
// store

/// Keys, revisions, and the position in the log.
type StoreContent = (Vec<KeyValue>, i64, i64, mvcc::LogPosition);

fn flip_store(store: &Path, scratch: &Path, every: u64, report: &mut ExperimentReport) -> Result<()> {
    let truth =
        open_copy(store, scratch, None)?.ok_or_else(|| ExperimentError::new("the store does not open"))?;
    // The file in the root directory of the store holds the sequence number of the catalog.
    for place in ["blocks", "catalogue", ""] {
        for (name, bytes) in files(&store.join(place))? {
            let path = PathBuf::from(place).join(&name);
            for at in positions(bytes.len(), every) {
                let verdict = match open_copy(store, scratch, Some((&path, &flipped(&bytes, at))))? {
                    None => FlipResult::Refused,
                    Some(found) if found == truth => FlipResult::Same,
                    Some(_) => FlipResult::Accepted,
                };
                let what = if place.is_empty() { &name } else { place };
                count(report, what, &format!("{} at {at}", path.display()), verdict);
            }
            say(&format!("store: {} of {} bytes", path.display(), bytes.len()));
        }
    }
    Ok(())
}

/// Opens a fresh copy each time: opening writes, and releases its lock late. Returns `None` if it fails.
fn open_copy(store: &Path, scratch: &Path, change: Option<(&Path, &[u8])>) -> Result<Option<StoreContent>> {
    let home = scratch.join("store");
    // A missing directory is fine.
    drop(std::fs::remove_dir_all(&home));
    copy(store, &home)?;
    if let Some((path, bytes)) = change {
        std::fs::write(home.join(path), bytes).attempt("write", path)?;
    }
    let Ok(backend) = SledBackend::open(&home) else { return Ok(None) };
    let Ok((_, store, _)) = mvcc::open(Box::new(backend), mvcc::StoreOptions::default()) else {
        return Ok(None);
    };
    Ok(content(&store))
}

fn content(store: &mvcc::Store) -> Option<StoreContent> {
    let found = store.range(&KeyRange::all(), 0, &RangeOptions::default()).ok()?;
    store.hash_kv(0).ok()?;
    Some((found.kvs, store.revision(), store.compact_revision(), store.applied()))
}

// ---------------------------------------------------------------------------------------------------------------
// stream

fn flip_stream(store: &Path, scratch: &Path, every: u64, report: &mut ExperimentReport) -> Result<()> {
    let home = scratch.join("sender");
    copy(store, &home)?;
    let backend = SledBackend::open(&home).or_say("open the store")?;
    let opened = mvcc::open(Box::new(backend), mvcc::StoreOptions::default()).or_say("open the store")?;
    let mut export = opened.2.export();
    let mut chunks = Vec::new();
    while let Some(chunk) = export.next(CHUNK_BYTES).or_say("export the store")? {
        chunks.push(chunk);
    }
    if !receives(&chunks, None) {
        return Err(ExperimentError::new("a stream is refused as it is"));
    }
    for number in 0..chunks.len() {
        for at in positions(chunks[number].len(), every) {
            // Each byte of a stream has a meaning, so a corrupt stream must not be received.
            let verdict = if receives(&chunks, Some((number, at))) {
                FlipResult::Accepted
            } else {
                FlipResult::Refused
            };
            count(report, "stream", &format!("chunk {number} at {at}"), verdict);
        }
    }
    say(&format!("stream: {} chunks", chunks.len()));
    Ok(())
}

fn receives(chunks: &[bytes::Bytes], flip: Option<(usize, usize)>) -> bool {
    let Ok(mut staging) = Staging::begin(Box::new(MemoryBackend::new()), &mvcc::StoreOptions::default())
    else {
        return false;
    };
    for (number, chunk) in chunks.iter().enumerate() {
        let added = match flip {
            Some((which, at)) if which == number => staging.add(&flipped(chunk, at)),
            _ => staging.add(chunk),
        };
        if added.is_err() {
            return false;
        }
    }
    staging.finish().is_ok()
}

// --------------------------------------------------------------------------------------------------------------
// program

/// Starts the real program on corrupted directories: it serves the original data, or exits with the cause.
async fn flip_and_start(
    place: &MemberPlace,
    scratch: &Path,
    order: &FlipOptions,
    report: &mut ExperimentReport,
) -> Result<()> {
    let mut chance = SmallRng::seed_from_u64(order.seed);
    let data_dir = scratch.join("damaged");
    let damaged = MemberPlace { data_dir: data_dir.clone(), ..place.clone() };
    let mut truth = None;
    for trial in 0..=order.starts {
        drop(std::fs::remove_dir_all(&data_dir));
        copy(&place.data_dir, &data_dir)?;
        let mut what = "nothing".to_owned();
        if trial > 0 {
            let place = ["wal", "store/blocks", "store/catalogue"][chance.random_range(0..3)];
            let files: Vec<_> =
                files(&data_dir.join(place))?.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
            let (name, bytes) = &files[chance.random_range(0..files.len())];
            // The start of a file has the densest contents.
            let reach = if chance.random_bool(0.5) { bytes.len() } else { bytes.len().min(20_000) };
            let at = chance.random_range(0..reach);
            let path = data_dir.join(place).join(name);
            std::fs::write(&path, flipped(bytes, at)).attempt("write", &path)?;
            what = format!("{place}/{name} at {at}");
        }
        let process = damaged.start(&[])?;
        if tokio::task::block_in_place(|| member::becomes_ready(&process))? {
            let mut client = MemberClient::connect(damaged.client_port, CALL_TIMEOUT).await?;
            let found = client.everything().await.map(|state| (state.keys, state.revision));
            member::kill(process)?;
            let intact = truth.get_or_insert_with(|| found.as_ref().ok().cloned());
            // An error to a client counts as a rejection too.
            match found {
                Ok(found) if Some(&found) != intact.as_ref() => {
                    count(report, "start", &what, FlipResult::Accepted)
                }
                Ok(_) => report.count("start served all"),
                Err(_) => report.count("start refused the read"),
            }
            continue;
        }
        let end = tokio::task::block_in_place(|| member::wait_end(process))?;
        report.count("start refused");
        if end.status.code() != Some(1) || end.said.contains("panicked") {
            report.violation(&what, format!("ended with {}: {}", end.status, end.said));
        }
    }
    Ok(())
}
