//! Disk failures: each operation of a short life fails once, and full disks.
//!
//! ```text
//!   for n in 1…: a new member; its nth operation fails   ▶ it exits and logs the cause    ▶ started again
//!                └─ until a whole life passes without reaching the nth
//!   full: a small tmpfs ▶ load until the member stops ▶ space is freed ▶ started again
//! ```
//!
//! * All acknowledged writes are present afterwards: on the directory as it is, and on the disk
//!   that a power loss would have left, where the writes of a failed sync are lost although the
//!   process could still read them.
//! * A stopping member logs the operation, the path and the system's error; it does not panic, and
//!   is not killed by a signal. If it continues, it must be correct to do so.
//! * Failures are one-shot: a program that retried would succeed, and be wrong.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::process::ProcessEnd;

use crate::bench::{Environment, ScratchDir, say};
use crate::clients::claim::{Claim, MemberKeys, check};
use crate::clients::client::MemberClient;
use crate::clients::workload::{AfterFailure, Workload};
use crate::disk::image::DiskImage;
use crate::disk::loss::{Loss, Manner};
use crate::disk::recorder::{Interference, RecorderLibrary};
use crate::disk::recording::{self, DiskOperation};
use crate::failure::{Attempt, ExperimentError, Result};
use crate::member::{self, MemberPlace};
use crate::report::ExperimentReport;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Duration of the load in each life: long enough for a checkpoint and a compaction.
const LOAD: Duration = Duration::from_millis(200);
const FILLING: Duration = Duration::from_secs(60);
/// Sizes of the small disks: full in the middle of a first segment, of a checkpoint, of a second segment.
const DISKS_MEBIBYTES: [u64; 4] = [3, 17, 40, 90];

/// Errno values of disk errors.
pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

#[derive(Clone, Copy, Debug)]
pub struct FailOptions {
    /// Fails only one in `every` operations.
    pub every: u64,
    pub seed: u64,
}

/// Fails each operation once with each error.
pub fn run(bench: &Environment, order: &FailOptions) -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.or_say("start a runtime")?;
    let mut report = ExperimentReport::default();
    let scratch = bench.directory("recorder")?;
    let recorder = RecorderLibrary::build(scratch.path())?;
    for (name, error) in [("EIO", EIO), ("ENOSPC", ENOSPC)] {
        let mut number = 1 + order.seed % order.every;
        loop {
            let trial = Trial { bench, recorder: &recorder, number, error, seed: order.seed };
            match runtime.block_on(trial.run())? {
                FailResult::NotReached => break,
                FailResult::Reached { stopped, violations } => {
                    report.count(&format!("{name}, {}", if stopped { "stopped" } else { "went on" }));
                    for violation in violations {
                        report.violation(&format!("{name} at operation {number}"), violation);
                    }
                }
            }
            number += order.every;
        }
        say(&format!("{name}: a life has {number} operations"));
    }
    Ok(report)
}

/// A life with a single failure, and its remains.
struct Trial<'a> {
    bench: &'a Environment,
    recorder: &'a RecorderLibrary,
    number: u64,
    error: i32,
    seed: u64,
}

enum FailResult {
    /// The life had fewer operations.
    NotReached,
    Reached {
        stopped: bool,
        violations: Vec<String>,
    },
}

impl Trial<'_> {
    async fn run(&self) -> Result<FailResult> {
        let mut scratch = self.bench.directory("fail")?;
        let (root, log) = (scratch.join("root"), scratch.join("log"));
        std::fs::create_dir(&root).attempt("create", &root)?;
        let mut place = MemberPlace::alone(&self.bench.server, root.join("d"), self.bench.ports(0));
        place.flags = vec!["--snapshot-count=40".to_owned()];
        let interference = Interference::FailAt(self.number, self.error);
        let environment = self.recorder.environment(&root, &log, interference);
        let workload = workload(&place, self.seed, &log);
        let (claims, end) = live(&place, &environment, &workload, LOAD).await?;
        let operations = recording::read(&log)?;
        if !operations.iter().any(|recorded| recorded.operation == DiskOperation::Failed)
            && !end.said.contains("fails with")
        {
            return Ok(FailResult::NotReached);
        }
        let stopped = end.status.code() != Some(0);
        let mut violations = Vec::new();
        if stopped {
            violations.extend(bad_end(&end, self.error));
        }
        let mut disk = DiskImage::new();
        operations.iter().try_for_each(|recorded| disk.play(&recorded.operation))?;
        let image = scratch.join("image");
        std::fs::create_dir(&image).attempt("create", &image)?;
        disk.write_image(&image, &mut Loss::new(Manner::Synced, 0))?;
        for (what, directory) in
            [("the directory as it was", root.join("d")), ("after a power cut", image.join("d"))]
        {
            let place = MemberPlace { data_dir: directory, ..place.clone() };
            match again(&place, &claims).await {
                Ok(found) => violations.extend(found.into_iter().map(|text| format!("{what}: {text}"))),
                Err(failure) => violations.push(format!("{what}: {failure}")),
            }
        }
        if !violations.is_empty() {
            let evidence = format!("kept in {}, the member said: {}", scratch.keep(), last_lines(&end.said));
            violations.push(evidence);
        }
        Ok(FailResult::Reached { stopped, violations })
    }
}

fn workload(place: &MemberPlace, seed: u64, log: &Path) -> Workload {
    let log = log.to_owned();
    Workload {
        seed,
        life: 0,
        clients: 3,
        big: 0.05,
        ports: vec![place.client_port],
        after_failure: AfterFailure::End,
        probes_every: None,
        position: Arc::new(move || std::fs::metadata(&log).map_or(0, |facts| facts.len())),
    }
}

/// Runs the member until it exits or receives SIGTERM.
async fn live(
    place: &MemberPlace,
    environment: &[(&'static str, String)],
    workload: &Workload,
    load: Duration,
) -> Result<(Vec<Claim>, ProcessEnd)> {
    let process = place.start(environment)?;
    let mut claims = Vec::new();
    if tokio::task::block_in_place(|| member::becomes_ready(&process))? {
        let running = workload.start();
        let deadline = Instant::now() + load;
        while Instant::now() < deadline && !running.is_over() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        process.terminate();
        claims = running.finish().await;
    }
    let end = tokio::task::block_in_place(|| member::wait_end(process))?;
    Ok((claims, end))
}

/// Returns the violation in the way it stopped, if any.
fn bad_end(end: &ProcessEnd, error: i32) -> Option<String> {
    let said = &end.said;
    let own_words: Vec<&str> = said.lines().filter(|line| !line.starts_with("torture recorder")).collect();
    let reason = format!("os error {error}");
    let named = own_words.iter().any(|line| line.contains(&reason) || line.contains("Os { code"));
    match end.status.code() {
        None => Some(format!("ended by a signal: {}", end.status)),
        Some(_) if said.contains("panicked") => Some("panicked".to_owned()),
        Some(1) if named => None,
        Some(1) => Some("stopped without naming the reason".to_owned()),
        Some(code) => Some(format!("ended with {code}")),
    }
}

fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(6)..].join(" | ")
}

/// Starts the member without failures and checks all acknowledged writes.
async fn again(place: &MemberPlace, claims: &[Claim]) -> Result<Vec<String>> {
    let process = place.start(&[])?;
    tokio::task::block_in_place(|| member::wait_ready(&process))?;
    let mut client = MemberClient::connect(place.client_port, CALL_TIMEOUT).await?;
    let state = client.everything().await?;
    let violations = check(claims, u64::MAX, &MemberKeys::default(), &state);
    drop(client);
    member::kill(process)?;
    Ok(violations)
}

/// Fills disks of several sizes. Without the permission to mount them, it only adds a note to the report.
pub fn fill(bench: &Environment, seed: u64) -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.or_say("start a runtime")?;
    let mut report = ExperimentReport::default();
    for mebibytes in DISKS_MEBIBYTES {
        let scratch = bench.directory("full")?;
        let mut disk = match SmallDisk::mount(&scratch, mebibytes) {
            Ok(disk) => disk,
            Err(failure) => {
                say(&format!("left out: a full disk needs the right to mount one ({failure})"));
                return Ok(report);
            }
        };
        let place = MemberPlace::alone(&bench.server, disk.path.join("d"), bench.ports(0));
        let workload = Workload { big: 0.5, ..workload(&place, seed, &scratch.join("no log")) };
        let (claims, end) = runtime.block_on(live(&place, &[], &workload, FILLING))?;
        let trial = format!("a disk of {mebibytes} MiB");
        report.count(&trial);
        match bad_end(&end, ENOSPC) {
            None if end.status.success() => report.violation(&trial, "was never full".to_owned()),
            bad => bad.into_iter().for_each(|bad| {
                report.violation(&trial, format!("{bad}: {}", last_lines(&end.said)));
            }),
        }
        disk.grow()?;
        let found = runtime.block_on(again(&place, &claims));
        for violation in found.unwrap_or_else(|failure| vec![failure.to_string()]) {
            report.violation(&trial, violation);
        }
        let acknowledged = claims.iter().filter(|claim| claim.answer.is_some()).count();
        say(&format!("{trial}: full after {acknowledged} acknowledged writes; {}", last_lines(&end.said)));
    }
    Ok(report)
}

/// A tmpfs of a given size, unmounted on drop.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn mount(scratch: &ScratchDir, mebibytes: u64) -> Result<SmallDisk> {
        let path = scratch.join("disk");
        std::fs::create_dir(&path).attempt("create", &path)?;
        let size = format!("size={mebibytes}m,mode=700");
        command("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &path.display().to_string()])?;
        Ok(SmallDisk { path })
    }

    fn grow(&mut self) -> Result<()> {
        command("mount", &["-o", "remount,size=1g", &self.path.display().to_string()])
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(failure) = command("umount", &[&self.path.display().to_string()]) {
            say(&format!("litter: {failure}"));
        }
    }
}

fn command(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().or_say(&format!("run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ExperimentError::new(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
