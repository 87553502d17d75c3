//! Power loss of a whole process, sled included: from a single recording, hundreds of disk states are
//! derived.
//!
//! ```text
//!   several lives of a loaded member ─recorder─▶ log ─▶ disk at point p ─loss─▶ image ─▶ the real program starts
//!          clients' claims with the length of the log ───────────────────────────────────────▶ check
//! ```
//!
//! The position of a response is sound because a client reads the length of the log after its response has
//! arrived. The recorder appends before it lets the server continue, so everything that the server did
//! before it responded, including the completion of each sync, is in the log by then. At any point from this
//! position on, the syncs that the response relied on are among the replayed operations, and a lost write is
//! the server's fault. Between the response and its position there may be more operations, where the check
//! does not require the write; the points directly at the positions keep that gap small. A sync in progress
//! at the point of failure makes no change durable.
//!
//! `disk` and `loss` define the possible states of a disk. They are harsher than journalling file systems:
//! names of a directory survive in any combination, not only in order.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::bench::{Environment, ScratchDir, say};
use crate::clients::claim::{Claim, check, check_order};
use crate::clients::client::MemberClient;
use crate::clients::filling::{self, Filling};
use crate::clients::workload::{AfterFailure, Workload};
use crate::disk::image::DiskImage;
use crate::disk::loss::{Loss, Manner};
use crate::disk::recorder::{Interference, RecorderLibrary};
use crate::disk::recording::{self, DiskOperation, RecordedOperation};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace};
use crate::report::ExperimentReport;

/// Images per recording: a recording takes about ten seconds, an image a tenth of a second.
const IMAGES_PER_RECORDING: u64 = 250;
/// Number of images that are checked concurrently.
const CHECKERS: u16 = 2;
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Acknowledged writes that are read back at their own revision, per image.
const HISTORY_SAMPLE: usize = 40;
/// One in `SECOND_START` images is started a second time: the state after recovery must hold as well.
const SECOND_START: u64 = 8;

#[derive(Clone, Debug)]
pub struct PowerLossOptions {
    pub images: u64,
    /// Number of keys before the recording starts.
    pub keys: u64,
    pub seed: u64,
    pub syncs: Syncs,
}

/// Behaviour of syncs on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    Kept,
    /// Syncs have no effect. The experiment must then find losses; otherwise it is useless.
    Ignored,
}

/// Runs the experiment on one recording after another. Fails only if it cannot be run; violations
/// are in the report.
pub fn run(bench: &Environment, order: &PowerLossOptions) -> Result<ExperimentReport> {
    let mut report = match order.syncs {
        Syncs::Kept => ExperimentReport::default(),
        Syncs::Ignored => ExperimentReport::on_trial(),
    };
    let runtime = tokio::runtime::Runtime::new().or_say("start a runtime")?;
    let mut number = 0;
    while report.checked() < order.images {
        let seed = order.seed.wrapping_mul(1000).wrapping_add(number);
        let began = Instant::now();
        let scratch = bench.directory("power")?;
        let recording = runtime.block_on(record(bench, &scratch, order.keys, seed))?;
        let operations = recording.operations.len();
        say(&format!(
            "recording {number}: {operations} operations, {} of {} writes acknowledged, {:.1} s",
            recording.claims.iter().filter(|claim| claim.answer.is_some()).count(),
            recording.claims.len(),
            began.elapsed().as_secs_f64()
        ));
        check_order(&recording.claims).into_iter().for_each(|violation| report.violation("order", violation));
        let images = IMAGES_PER_RECORDING.min(order.images - report.checked());
        check_images(bench, recording, images, seed, order.syncs, &mut report)?;
        number += 1;
    }
    Ok(report)
}

/// The recorded operations and claims of several lives of a member.
struct Recording {
    place: MemberPlace,
    /// Keys written before the recording, and the disk with them.
    filling: Filling,
    begin: DiskImage,
    operations: Vec<RecordedOperation>,
    claims: Vec<Claim>,
}

#[derive(Clone, Copy, Debug)]
enum Life {
    /// Killed at this operation; a small number lies within the start.
    KilledAt(u64),
    /// Stopped by SIGTERM after this many milliseconds of load.
    Stopped(u64),
}

/// Chooses lives that cover first starts, checkpoints, kills and restarts.
fn lives(chance: &mut SmallRng) -> Vec<Life> {
    let mut start = |most: u64| Life::KilledAt(chance.random_range(1..most));
    let starts = [start(60), start(80), start(120)];
    let mut load = |least: u64| Life::KilledAt(chance.random_range(least..6 * least));
    let loads = [load(200), load(500), load(400)];
    vec![
        starts[0],
        Life::Stopped(1200),
        starts[1],
        loads[0],
        loads[1],
        Life::Stopped(600),
        loads[2],
        starts[2],
        Life::Stopped(300),
    ]
}

async fn record(bench: &Environment, scratch: &ScratchDir, keys: u64, seed: u64) -> Result<Recording> {
    let mut chance = SmallRng::seed_from_u64(seed);
    let recorder = RecorderLibrary::build(scratch.path())?;
    let (root, log) = (scratch.join("root"), scratch.join("log"));
    std::fs::create_dir(&root).attempt("create", &root)?;
    let mut place = MemberPlace::alone(&bench.server, root.join("d"), bench.ports(0));
    let filling = fill(&place, keys).await?;
    let begin = DiskImage::of(&root)?;
    place.flags =
        [filling::QUOTA, "--snapshot-count=200", "--snapshot-catchup-entries=20"].map(str::to_owned).to_vec();
    // Every other recording has large values: segments are rotated, checkpoints become due by size.
    let big = if seed.is_multiple_of(2) { 0.01 } else { 0.25 };
    let mut claims = Vec::new();
    for (number, life) in lives(&mut chance).into_iter().enumerate() {
        let measured = log.clone();
        let workload = Workload {
            seed,
            life: number as u64,
            clients: 8,
            big,
            ports: vec![place.client_port],
            after_failure: AfterFailure::End,
            probes_every: None,
            position: Arc::new(move || std::fs::metadata(&measured).map_or(0, |facts| facts.len())),
        };
        let interference = match life {
            Life::KilledAt(number) => Interference::KillAt(number),
            Life::Stopped(_) => Interference::None,
        };
        let environment = recorder.environment(&root, &log, interference);
        claims.extend(live(&place, life, &workload, &environment).await?);
    }
    let operations = recording::read(&log)?;
    let mut disk = begin.clone();
    operations.iter().try_for_each(|recorded| disk.play(&recorded.operation))?;
    disk.check_equals(&root)?;
    Ok(Recording { place, filling, begin, operations, claims })
}

/// Writes the initial keys in a life that is not recorded; its files count as synced. Skipped without keys.
async fn fill(place: &MemberPlace, keys: u64) -> Result<Filling> {
    if keys == 0 {
        return Ok(Filling::default());
    }
    let place = MemberPlace { flags: vec![filling::QUOTA.to_owned()], ..place.clone() };
    let process = place.start(&[])?;
    member::wait_ready(&process)?;
    let filling = Filling::make(&MemberClient::connect(place.client_port, CALL_TIMEOUT).await?, keys).await?;
    process.terminate();
    member::wait_end(process)?;
    Ok(filling)
}

async fn live(
    place: &MemberPlace,
    life: Life,
    workload: &Workload,
    environment: &[(&'static str, String)],
) -> Result<Vec<Claim>> {
    let process = place.start(environment)?;
    let (process, ready) = tokio::task::spawn_blocking(move || {
        let ready = member::becomes_ready(&process);
        (process, ready)
    })
    .await
    .or_say("wait for a start")?;
    if !ready? {
        let end = member::wait_end(process)?;
        return match life {
            Life::KilledAt(_) if end.status.code().is_none() => Ok(Vec::new()),
            _ => Err(ExperimentError::new(format!("the recorded member did not start: {}", end.said))),
        };
    }
    let running = workload.start();
    let deadline = match life {
        Life::Stopped(milliseconds) => Instant::now() + Duration::from_millis(milliseconds),
        Life::KilledAt(_) => Instant::now() + Duration::from_secs(20),
    };
    while Instant::now() < deadline && !running.is_over() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    process.terminate();
    let claims = running.finish().await;
    let end =
        tokio::task::spawn_blocking(move || member::wait_end(process)).await.or_say("wait for an end")??;
    match (life, end.status.code()) {
        (Life::Stopped(_), Some(0)) | (Life::KilledAt(_), None | Some(0)) => Ok(claims),
        (_, code) => {
            Err(ExperimentError::new(format!("the recorded member ended with {code:?}: {}", end.said)))
        }
    }
}

/// A disk state that a power loss could have left.
struct Image {
    number: u64,
    scratch: ScratchDir,
    /// Length of the log at the failure: acknowledgements up to here must hold.
    cutoff: u64,
    manner: Manner,
    what: String,
}

fn check_images(
    bench: &Environment,
    recording: Recording,
    images: u64,
    seed: u64,
    syncs: Syncs,
    report: &mut ExperimentReport,
) -> Result<()> {
    let points = points(&recording, images, &mut SmallRng::seed_from_u64(seed ^ 0xd15c));
    let recording = Arc::new(recording);
    let (send, receive) = sync_channel::<Image>(1);
    let receive = Arc::new(Mutex::new(receive));
    let shared = Arc::new(Mutex::new(std::mem::take(report)));
    let made = std::thread::scope(|scope| {
        for slot in 0..CHECKERS {
            let (recording, receive, shared) =
                (Arc::clone(&recording), Arc::clone(&receive), Arc::clone(&shared));
            scope.spawn(move || checker(bench, slot, &recording, &receive, &shared));
        }
        let mut disk = recording.begin.clone();
        let mut point = points.iter().peekable();
        for (at, recorded) in recording.operations.iter().enumerate() {
            match (&recorded.operation, syncs) {
                (DiskOperation::SyncEnd { .. }, Syncs::Ignored) => {}
                (operation, _) => disk.play(operation)?,
            }
            while let Some((number, _)) = point.next_if(|(_, point)| *point == at) {
                let manner = Manner::ALL[*number as usize % Manner::ALL.len()];
                let scratch = bench.directory("image")?;
                disk.write_image(scratch.path(), &mut Loss::new(manner, seed ^ number << 32))?;
                let what = format!("image {number}: {manner:?} after operation {at}, {}", name(recorded));
                let image = Image { number: *number, scratch, cutoff: recorded.end, manner, what };
                send.send(image).or_say("hand over an image")?;
            }
        }
        drop(send);
        Ok(())
    });
    *report = std::mem::take(&mut *shared.lock().unwrap_or_else(PoisonError::into_inner));
    made
}

/// Formats an operation, truncated because of the bytes of writes.
fn name(recorded: &RecordedOperation) -> String {
    format!("{:?}", recorded.operation).chars().take(120).collect()
}

/// Chooses the points of failure: a third anywhere, a third around changes of names and lengths, a
/// third directly after a response. Ordered by position, each with the number of its image.
fn points(recording: &Recording, images: u64, chance: &mut SmallRng) -> Vec<(u64, usize)> {
    let operations = &recording.operations;
    let is_rare = |recorded: &RecordedOperation| {
        use DiskOperation::{Create, MakeDirectory, Remove, Rename, Start, Truncate};
        let operation = &recorded.operation;
        matches!(
            operation,
            Create { .. } | MakeDirectory { .. } | Remove { .. } | Rename { .. } | Start | Truncate { .. }
        )
    };
    let rare: Vec<usize> = (0..operations.len()).filter(|at| is_rare(&operations[*at])).collect();
    let answers: Vec<u64> =
        recording.claims.iter().filter_map(|claim| claim.answer.map(|answer| answer.at)).collect();
    let mut points: Vec<(u64, usize)> = (0..images)
        .map(|number| {
            let point = match chance.random_range(0..3) {
                0 => chance.random_range(0..operations.len()),
                1 => rare[chance.random_range(0..rare.len())] + chance.random_range(0..4),
                _ => {
                    let mark = answers[chance.random_range(0..answers.len())];
                    operations.partition_point(|recorded| recorded.end < mark)
                }
            };
            (number, point.min(operations.len() - 1))
        })
        .collect();
    points.sort_by_key(|(_, point)| *point);
    points
}

fn checker(
    bench: &Environment,
    slot: u16,
    recording: &Recording,
    images: &Mutex<Receiver<Image>>,
    report: &Mutex<ExperimentReport>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    loop {
        let image = images.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut image) = image else { return };
        let found = match &runtime {
            Ok(runtime) => runtime.block_on(examine(bench, slot, recording, &image)),
            Err(error) => Err(ExperimentError::new(format!("start a runtime: {error}"))),
        };
        let violations = found.unwrap_or_else(|failure| vec![failure.to_string()]);
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.count(&format!("{:?}", image.manner));
        if !violations.is_empty() && report.keeps_evidence() {
            image.what.push_str(&format!(" (kept in {})", image.scratch.keep()));
        }
        for violation in violations {
            report.violation(&image.what, violation);
        }
    }
}

/// Starts the program on an image and compares its data with the acknowledgements.
async fn examine(
    bench: &Environment,
    slot: u16,
    recording: &Recording,
    image: &Image,
) -> Result<Vec<String>> {
    let (client_port, peer_port) = bench.ports(1 + slot);
    let place =
        MemberPlace { data_dir: image.scratch.join("d"), client_port, peer_port, ..recording.place.clone() };
    let process = place.start(&[])?;
    member::wait_ready(&process)?;
    let mut client = MemberClient::connect(client_port, CALL_TIMEOUT).await?;
    let state = client.everything().await?;
    let claims = &recording.claims;
    let mut violations = check(claims, image.cutoff, &recording.filling.baseline(), &state);
    let mut chance = SmallRng::seed_from_u64(image.number);
    violations.extend(recording.filling.check(&mut client, &mut chance).await?);
    if !violations.is_empty() {
        return Ok(violations);
    }
    violations.extend(check_history(&mut client, claims, image, &mut chance).await?);
    let hash = client.hash(0).await?;
    member::kill(process)?;
    if image.number.is_multiple_of(SECOND_START) {
        let process = place.start(&[])?;
        member::wait_ready(&process)?;
        let mut client = MemberClient::connect(client_port, CALL_TIMEOUT).await?;
        let again = client.hash(0).await?;
        if again != hash {
            violations.push(format!("hash {hash:?} after the first start, {again:?} after the second"));
        }
        member::kill(process)?;
    }
    Ok(violations)
}

/// Reads acknowledged writes at their revisions.
async fn check_history(
    client: &mut MemberClient,
    claims: &[Claim],
    image: &Image,
    chance: &mut SmallRng,
) -> Result<Vec<String>> {
    let is_acknowledged = |claim: &&Claim| claim.answer.is_some_and(|answer| answer.at <= image.cutoff);
    let acknowledged: Vec<&Claim> = claims.iter().filter(is_acknowledged).collect();
    let mut violations = Vec::new();
    for _ in 0..HISTORY_SAMPLE.min(acknowledged.len()) {
        // The latest writes are the least compacted, and the likeliest to be lost.
        let recent = acknowledged.len().saturating_sub(400);
        let claim = acknowledged[chance.random_range(recent..acknowledged.len())];
        violations.extend(crate::clients::record::check_history(client, claim).await?);
    }
    Ok(violations)
}
