//! What a report says of the machine it was made on.

use crate::report::model::{Disk, Machine};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Appends with a sync each, to learn what the disk costs.
const SYNCS: usize = 64;
const SYNC_BYTES: usize = 4096;

pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The machine without its disk.
pub fn describe() -> Machine {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let trimmed = |path: &str| text(path).trim().to_owned();
    Machine {
        host: trimmed("/proc/sys/kernel/hostname"),
        processor: processor(&text("/proc/cpuinfo")),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        architecture: std::env::consts::ARCH.into(),
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
        system: format!("{} {}", trimmed("/proc/sys/kernel/ostype"), trimmed("/proc/sys/kernel/osrelease")),
        disk: None,
    }
}

/// The name that x86 and most ARM kernels give; ARM servers often give none.
fn processor(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let part = || Some(format!("{} part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(|| field("Model")).or_else(part).unwrap_or_else(|| "unknown".into())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// The file system of a directory, and what a sync on it takes.
pub fn disk(directory: &Path) -> Disk {
    let path = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let (device, filesystem) = mount_of(&mounts, &path);
    Disk { directory: path.display().to_string(), filesystem, device, sync_ms: sync_ms(&path).ok() }
}

/// Device and kind of the innermost mount that holds the path.
fn mount_of(mounts: &str, path: &Path) -> (String, String) {
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let holding = fields.filter(|(_, place, _)| path.starts_with(place));
    let innermost = holding.max_by_key(|(_, place, _)| place.len());
    innermost.map_or_else(Default::default, |(device, _, kind)| (device.to_owned(), kind.to_owned()))
}

/// The middle of some appends with fdatasync.
fn sync_ms(directory: &Path) -> std::io::Result<f64> {
    let path = directory.join(format!("loadgen-{}-sync", std::process::id()));
    let measured =
        OpenOptions::new().create_new(true).append(true).open(&path).and_then(|file| appends(&file));
    // Ours alone; what cannot be removed is left for its owner to see.
    let _ = std::fs::remove_file(&path);
    let mut millis = measured?;
    millis.sort_unstable_by(f64::total_cmp);
    Ok((millis[millis.len() / 2] * 1e4).round() / 1e4)
}

fn appends(mut file: &File) -> std::io::Result<Vec<f64>> {
    let block = [7; SYNC_BYTES];
    let mut millis = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        millis.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(millis)
}

/// The commit of the directory this program was called in, if it lies in a repository of git.
pub fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_memory_are_found_by_their_names() {
        let x86 = "processor : 0\nmodel name\t: AMD EPYC 7B13\nprocessor : 1\nmodel name\t: AMD EPYC 7B13\n";
        assert_eq!(processor(x86), "AMD EPYC 7B13");
        assert_eq!(processor("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "0x41 part 0xd0c");
        assert_eq!(processor(""), "unknown");
        assert_eq!(memory_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), 16 << 20);
    }

    #[test]
    fn a_path_lies_on_the_innermost_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/b /run/disk xfs rw 0 0\n";
        let found = mount_of(mounts, Path::new("/run/disk/x"));
        assert_eq!(found, ("/dev/b".into(), "xfs".into()));
        assert_eq!(mount_of(mounts, Path::new("/runner")).1, "ext4");
    }

    #[test]
    fn a_disk_says_what_a_sync_costs_and_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk(dir.path()).sync_ms.is_some_and(|millis| millis >= 0.0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(disk(Path::new("/nonexistent")).sync_ms, None);
    }

    #[test]
    fn this_machine_has_a_name_and_processors() {
        let machine = describe();
        assert!(machine.processors > 0 && machine.memory_bytes > 0 && !machine.system.trim().is_empty());
    }
}
