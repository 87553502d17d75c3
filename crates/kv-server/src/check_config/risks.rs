//! Risks of a member's settings. Each is one sentence about a possible consequence.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{statfs, statvfs};

use certificates::date;
use config::{Scheme, Settings, Url, Urls};
use process::descriptors;
use process::log::{LogOutput, LogSettings};

/// File system magic numbers of `statfs`.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const OVERLAYFS: u64 = 0x794c_7630;
const NFS: u64 = 0x6969;
/// Start of 2020. An earlier time means that the clock was never set.
const CLOCK_SECONDS_MIN: u64 = 1_577_836_800;
/// Minimum ratio of election timeout to heartbeat interval, by etcd's tuning guide.
const HEARTBEATS_IN_ELECTION: u32 = 10;
/// Request size above which etcd warns, too.
const REQUEST_BYTES: usize = 10 << 20;
/// Descriptors needed by a small member for connections and files.
const DESCRIPTORS: u64 = 4096;

/// Remaining days below which a certificate should be replaced.
const CERTIFICATE_DAYS: i64 = 30;
const DAY_SECONDS: i64 = 86_400;

/// Returns all risks, most severe first. `ends` are certificate files with their expiration in seconds
/// since 1970.
pub fn of(settings: &Settings, log: &LogSettings, ends: &[(PathBuf, i64)]) -> Vec<String> {
    let mut risks = Vec::new();
    places(settings, &mut risks);
    certificates(ends, &mut risks);
    listeners(settings, &mut risks);
    cluster(settings, &mut risks);
    limits(settings, log, &mut risks);
    risks
}

/// Checks the file systems of the directories.
fn places(settings: &Settings, risks: &mut Vec<String>) {
    let data = existing(&settings.data_dir);
    let mut directories = vec![("--data-dir", data)];
    if let Some(wal) = &settings.wal_dir {
        let wal = existing(wal);
        directories.push(("--wal-dir", wal));
        let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
        if device(wal).is_some() && device(wal) == device(data) {
            risks.push(
                "--wal-dir and --data-dir are on one file system: their writes share its disk".to_owned(),
            );
        }
    }
    for (flag, path) in directories {
        let Ok(system) = statfs(path) else { continue };
        // The type of the field differs between architectures.
        let kind = match system.f_type as u64 & 0xffff_ffff {
            TMPFS | RAMFS => "in memory: a reboot loses all data",
            OVERLAYFS => "a layer of a container: removing the container loses all data; mount a volume",
            NFS => "on a network: syncs are slow, and locks may not hold",
            _ => continue,
        };
        risks.push(format!("{flag} {} is {kind}", path.display()));
    }
    if let Ok(space) = statvfs(data) {
        let total = space.f_blocks.saturating_mul(space.f_frsize);
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let quota = u64::try_from(settings.limits.quota_bytes).ok();
        match quota {
            None => risks.push(
                "--quota-backend-bytes is negative: the store may fill the disk, and the member \
                 ends then"
                    .to_owned(),
            ),
            // A store takes at most a third more than its data, and the log a few segments.
            Some(quota) if quota.saturating_mul(2) > total => risks.push(format!(
                "--quota-backend-bytes[{quota}] with the log and a snapshot that is received may not fit the \
                 disk of {total} bytes"
            )),
            Some(quota) if quota > free => {
                risks.push(format!("--quota-backend-bytes[{quota}] exceeds the {free} free bytes"))
            }
            Some(_) => {}
        }
    }
}

/// Checks for expired certificates, and ones about to expire.
fn certificates(ends: &[(PathBuf, i64)], risks: &mut Vec<String>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    for (path, end) in ends {
        let (path, days, date) = (path.display(), (end - now) / DAY_SECONDS, date(*end));
        if *end <= now {
            risks.push(format!("{path}: a certificate has expired ({date}): peers and clients reject it"));
        } else if days < CERTIFICATE_DAYS {
            risks.push(format!(
                "{path}: a certificate expires in {days} days ({date}); the file can be replaced at run time"
            ));
        }
    }
}

/// Returns the nearest existing ancestor, or the directory itself.
fn existing(path: &Path) -> &Path {
    let named = path.ancestors().find(|path| !path.as_os_str().is_empty() && path.exists());
    named.unwrap_or(Path::new("."))
}

fn is_local(url: &Url) -> bool {
    url.scheme().is_unix()
        || url.host() == "localhost"
        || url.host().parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Checks listeners for missing TLS, missing authentication and exposed profiles.
fn listeners(settings: &Settings, risks: &mut Vec<String>) {
    let plain = |urls: &Urls| {
        let found: Vec<String> = urls
            .iter()
            .filter(|url| url.scheme() == Scheme::Http && !is_local(url))
            .map(Url::to_string)
            .collect();
        Some(found.join(",")).filter(|found| !found.is_empty())
    };
    if let Some(urls) =
        plain(&settings.listen_client_urls).or_else(|| plain(&settings.listen_client_http_urls))
    {
        risks.push(format!(
            "client traffic is unencrypted on {urls}: passwords, tokens and values can be read on the network"
        ));
    }
    if let Some(urls) = plain(&settings.listen_peer_urls) {
        risks.push(format!(
            "peer traffic is unencrypted on {urls}: any program that reaches the port can act as a member"
        ));
    }
    let asks = |port: &Option<config::PortTls>| port.as_ref().is_none_or(|port| port.requires_certificate);
    if !asks(&settings.tls.peer) {
        risks.push(
            "members show no certificate (--peer-client-cert-auth): any program that reaches the port can act \
             as a member"
                .to_owned(),
        );
    }
    if settings.enable_pprof && settings.listen_client_urls.iter().any(|url| !is_local(url)) {
        risks.push("--enable-pprof or --log-level=debug: every client can take profiles".to_owned());
    }
}

/// Checks the cluster's size, token, advertised URLs and timing.
fn cluster(settings: &Settings, risks: &mut Vec<String>) {
    let initial = &settings.initial;
    let mut names: Vec<&str> =
        initial.cluster.split(',').filter_map(|member| Some(member.split_once('=')?.0.trim())).collect();
    names.sort_unstable();
    names.dedup();
    let count = names.len();
    if count > 0 && count.is_multiple_of(2) && settings.discovery.is_none() {
        risks.push(format!(
            "{count} members tolerate the loss of {}, as {} members do",
            (count - 1) / 2,
            count - 1
        ));
    }
    if count > 1 && initial.token == "etcd-cluster" {
        risks.push(
            "--initial-cluster-token is the default: a member of another cluster with the same URLs is \
             not distinguished"
                .to_owned(),
        );
    }
    if count > 1 {
        let own = settings.advertise_client_urls.iter().chain(settings.advertise_peer_urls.iter());
        for url in own.filter(|url| is_local(url)) {
            risks.push(format!("advertised {url} points other machines to themselves"));
        }
    }
    for url in settings.advertise_client_urls.iter().chain(settings.advertise_peer_urls.iter()) {
        if url.host().parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
            risks.push(format!("advertised {url} is not reachable from other hosts"));
        }
    }
    let clock = settings.clock;
    if clock.election < clock.heartbeat * HEARTBEATS_IN_ELECTION {
        risks.push(format!(
            "--election-timeout[{:?}] is less than {HEARTBEATS_IN_ELECTION} times \
             --heartbeat-interval[{:?}]: one late heartbeat may end a leadership",
            clock.election, clock.heartbeat
        ));
    }
    if settings.force_new_cluster {
        risks.push(
            "--force-new-cluster removes all other members at every start: remove it afterwards".to_owned(),
        );
    }
}

/// Checks for unbounded growth and insufficient limits.
fn limits(settings: &Settings, log: &LogSettings, risks: &mut Vec<String>) {
    if settings.retention.is_none() {
        risks.push(
            "--auto-compaction-retention is 0: history grows until clients compact it, or to the \
             quota"
                .to_owned(),
        );
    }
    if settings.limits.request_bytes_max > REQUEST_BYTES {
        risks.push(format!(
            "--max-request-bytes[{}] is large: such a request delays heartbeats and elections",
            settings.limits.request_bytes_max
        ));
    }
    if let Some(limit) = settings.memory_limit
        && u64::try_from(settings.limits.quota_bytes).unwrap_or(u64::MAX) > limit / 2
    {
        risks.push(format!(
            "--memory-limit[{limit}] is less than twice --quota-backend-bytes[{}]: keys and their histories \
             may leave too little for large requests",
            settings.limits.quota_bytes
        ));
    }
    if let Some(LogOutput::File(path)) =
        log.outputs.iter().find(|output| matches!(output, LogOutput::File(_)))
        && log.rotation.is_none()
    {
        risks.push(format!(
            "log file {} grows without bound: --enable-log-rotation, or a program that moves it and sends \
             SIGHUP",
            path.display()
        ));
    }
    let descriptors = descriptors::limit_max();
    if descriptors < DESCRIPTORS {
        risks.push(format!("the open file limit (ulimit -Hn) is {descriptors}: clients wait for each other"));
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    if clock.as_secs() < CLOCK_SECONDS_MIN {
        risks.push(
            "the clock of this machine is not set: certificates are rejected, and log lines misdated"
                .to_owned(),
        );
    }
}
