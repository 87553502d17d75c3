//! The disk: what log and store wrote, how long it took, and what each byte of a command cost in bytes
//! written.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::buckets::disk_histogram;

#[derive(Debug)]
pub struct DiskMetrics {
    /// One write of the log: a group of frames, the head of a segment.
    pub wal_write_seconds: Histogram,
    /// One fdatasync of the log.
    pub wal_sync_seconds: Histogram,
    /// Frames of the log, as etcd counts them.
    pub wal_bytes: Gauge,
    /// What the log gave to the disk in fact: frames, padding, heads of segments, room made in advance.
    pub log_written_bytes: Counter,
    /// What the store gave to the disk, by what it was for.
    pub store_written_bytes: Family<Purpose, Counter>,
    /// Records of the store, raw: what the store was asked to keep.
    pub record_bytes: Counter,
    /// Bytes of applied commands: what had to be written once at the least.
    pub command_bytes: Counter,
    /// One checkpoint of the store.
    pub backend_commit_seconds: Histogram,
    /// One Defragment call.
    pub defragment_seconds: Histogram,
    pub defragments_running: Gauge,
    /// One read of the whole store, for another member or as a snapshot of a client.
    pub backend_snapshot_seconds: Histogram,
    pub hash_seconds: Histogram,
    pub hash_revision_seconds: Histogram,
    /// CPU time of the parts of the state that this leader has recounted, and its passes over all of it.
    pub recount_seconds: Counter<f64, AtomicU64>,
    pub recount_passes: Counter,
    pub compaction: CompactionMetrics,
}

#[derive(Debug)]
pub struct CompactionMetrics {
    /// When the last one since the start was finished, in seconds since the Unix epoch.
    pub last: Gauge,
    /// One bounded step.
    pub step_milliseconds: Histogram,
    /// A whole compaction, pauses included.
    pub total_milliseconds: Histogram,
}

impl DiskMetrics {
    /// What the store gave to the disk, for any purpose.
    pub fn store_bytes(&self) -> u64 {
        let purposes = ["checkpoint", "compaction", "catalogue", "snapshot"];
        let written =
            purposes.map(|purpose| self.store_written_bytes.get(&Purpose { purpose }).map(|it| it.get()));
        written.into_iter().flatten().sum()
    }
}

/// Why the store wrote.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Purpose {
    pub purpose: &'static str,
}

impl Default for DiskMetrics {
    fn default() -> Self {
        DiskMetrics {
            wal_write_seconds: disk_histogram(),
            wal_sync_seconds: disk_histogram(),
            wal_bytes: Gauge::default(),
            log_written_bytes: Counter::default(),
            store_written_bytes: Family::default(),
            record_bytes: Counter::default(),
            command_bytes: Counter::default(),
            backend_commit_seconds: disk_histogram(),
            defragment_seconds: Histogram::new(exponential_buckets(0.1, 2.0, 13)),
            defragments_running: Gauge::default(),
            backend_snapshot_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 17)),
            hash_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 15)),
            hash_revision_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 15)),
            recount_seconds: Counter::default(),
            recount_passes: Counter::default(),
            compaction: CompactionMetrics {
                last: Gauge::default(),
                step_milliseconds: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
                total_milliseconds: Histogram::new(exponential_buckets(100.0, 2.0, 14)),
            },
        }
    }
}

impl DiskMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let histograms = [
            ("etcd_disk_wal_write_duration_seconds", "Time of one write to the log", &self.wal_write_seconds),
            ("etcd_disk_wal_fsync_duration_seconds", "Time of one sync of the log", &self.wal_sync_seconds),
            (
                "etcd_disk_backend_commit_duration_seconds",
                "Time to make a checkpoint of the store durable",
                &self.backend_commit_seconds,
            ),
            (
                "etcd_disk_backend_defrag_duration_seconds",
                "Time of a Defragment call",
                &self.defragment_seconds,
            ),
            (
                "etcd_disk_backend_snapshot_duration_seconds",
                "Time to read the whole store, for another member or a client",
                &self.backend_snapshot_seconds,
            ),
            ("etcd_mvcc_hash_duration_seconds", "Time of a Hash call", &self.hash_seconds),
            ("etcd_mvcc_hash_rev_duration_seconds", "Time of a HashKV call", &self.hash_revision_seconds),
            (
                "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
                "Time of one step of a compaction",
                &self.compaction.step_milliseconds,
            ),
            (
                "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
                "Time of a whole compaction, pauses included",
                &self.compaction.total_milliseconds,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
        let gauges = [
            ("etcd_disk_wal_write_bytes_total", "Bytes of frames written to the log", &self.wal_bytes),
            ("etcd_disk_defrag_inflight", "1 while a Defragment call runs", &self.defragments_running),
            (
                "etcd_debugging_mvcc_db_compaction_last",
                "Unix time of the last compaction since the start",
                &self.compaction.last,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        self.register_ours(registry);
    }

    /// What etcd has no names for.
    fn register_ours(&self, registry: &mut Registry) {
        registry.register(
            "kv_server_log_written_bytes",
            "Bytes the log gave to the disk, padding and heads of segments included",
            self.log_written_bytes.clone(),
        );
        registry.register(
            "kv_server_store_written_bytes",
            "Bytes the store gave to the disk",
            self.store_written_bytes.clone(),
        );
        registry.register(
            "kv_server_store_record_bytes",
            "Bytes of records that became part of a checkpoint, before compression",
            self.record_bytes.clone(),
        );
        registry.register(
            "kv_server_command_bytes",
            "Bytes of applied commands; log and store bytes over these are the write amplification",
            self.command_bytes.clone(),
        );
        registry.register(
            "kv_server_recount_cpu_seconds",
            "CPU time that this leader spent on recounting the state, to compare it with that of others",
            self.recount_seconds.clone(),
        );
        registry.register(
            "kv_server_recount_passes",
            "Passes over the whole state that this leader has finished",
            self.recount_passes.clone(),
        );
    }
}
