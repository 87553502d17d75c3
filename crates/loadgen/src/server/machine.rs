//! The description of the machine in a report.

use bench_report::model::{DiskInfo, Machine};
use procfs::{Current, Meminfo, MountEntry};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Number of appends, each with fdatasync, that measure the disk.
const SYNCS: usize = 64;
const SYNC_BYTES: usize = 4096;

pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Describes the machine without its disk.
pub fn describe() -> Machine {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let trimmed = |path: &str| text(path).trim().to_owned();
    Machine {
        host: trimmed("/proc/sys/kernel/hostname"),
        processor: processor(&text("/proc/cpuinfo")),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        architecture: std::env::consts::ARCH.into(),
        memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
        system: format!("{} {}", trimmed("/proc/sys/kernel/ostype"), trimmed("/proc/sys/kernel/osrelease")),
        disk: None,
        wal_disk: None,
        media: Vec::new(),
    }
}

/// Returns the processor name of x86 and most ARM kernels; ARM servers often lack one.
fn processor(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let part = || Some(format!("{} part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(|| field("Model")).or_else(part).unwrap_or_else(|| "unknown".into())
}

/// Describes the file system of a directory, with its sync latency.
pub fn disk(directory: &Path) -> DiskInfo {
    let path = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mount = mount_of(procfs::mounts().unwrap_or_default(), &path);
    let (device, filesystem) = mount.map(|mount| (mount.fs_spec, mount.fs_vfstype)).unwrap_or_default();
    DiskInfo { directory: path.display().to_string(), filesystem, device, sync_ms: sync_ms(&path).ok() }
}

/// Returns the innermost mount that contains the path.
fn mount_of(mounts: Vec<MountEntry>, path: &Path) -> Option<MountEntry> {
    let holding = mounts.into_iter().filter(|mount| path.starts_with(&mount.fs_file));
    holding.max_by_key(|mount| mount.fs_file.len())
}

/// Returns the median of some appends with fdatasync.
fn sync_ms(directory: &Path) -> std::io::Result<f64> {
    let path = directory.join(format!("loadgen-{}-sync", std::process::id()));
    let measured =
        OpenOptions::new().create_new(true).append(true).open(&path).and_then(|file| appends(&file));
    // If it cannot be removed, it stays.
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

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromBufRead;

    #[test]
    fn processors_are_found_by_their_names() {
        let x86 = "processor : 0\nmodel name\t: AMD EPYC 7B13\nprocessor : 1\nmodel name\t: AMD EPYC 7B13\n";
        assert_eq!(processor(x86), "AMD EPYC 7B13");
        assert_eq!(processor("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "0x41 part 0xd0c");
        assert_eq!(processor(""), "unknown");
    }

    #[test]
    fn a_path_lies_on_the_innermost_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/b /run/disk xfs rw 0 0\n";
        let kind = |path: &str| {
            let mounts = Vec::<MountEntry>::from_buf_read(mounts.as_bytes()).unwrap();
            mount_of(mounts, Path::new(path)).map(|mount| (mount.fs_spec, mount.fs_vfstype))
        };
        assert_eq!(kind("/run/disk/x"), Some(("/dev/b".into(), "xfs".into())));
        assert_eq!(kind("/runner").unwrap().1, "ext4");
    }

    #[test]
    fn the_sync_of_a_disk_is_measured_and_leaves_no_file() {
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
