//! Disk metrics: bytes written by log and store, durations, and write amplification.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::declare::disk_histogram;

fn doubling(first: f64, buckets: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, buckets))
}

crate::declare_metrics! {
    pub struct DiskMetrics {
        /// One write of the log: a group of frames, the head of a segment.
        wal_write_seconds: Histogram = disk_histogram()
            => "etcd_disk_wal_write_duration_seconds", "Time of one write to the log";
        /// One fdatasync of the log.
        wal_sync_seconds: Histogram = disk_histogram()
            => "etcd_disk_wal_fsync_duration_seconds", "Time of one sync of the log";
        /// One checkpoint of the store.
        backend_commit_seconds: Histogram = disk_histogram()
            => "etcd_disk_backend_commit_duration_seconds", "Time to make a checkpoint of the store durable";
        /// One Defragment call.
        defragment_seconds: Histogram = doubling(0.1, 13)
            => "etcd_disk_backend_defrag_duration_seconds", "Time of a Defragment call";
        /// One read of the whole store, for another member or as a snapshot of a client.
        backend_snapshot_seconds: Histogram = doubling(0.01, 17)
            => "etcd_disk_backend_snapshot_duration_seconds",
               "Time to read the whole store, for another member or a client";
        hash_seconds: Histogram = doubling(0.01, 15)
            => "etcd_mvcc_hash_duration_seconds", "Time of a Hash call";
        hash_revision_seconds: Histogram = doubling(0.01, 15)
            => "etcd_mvcc_hash_rev_duration_seconds", "Time of a HashKV call";
        /// One bounded step of a compaction.
        compaction_step_milliseconds: Histogram = doubling(1.0, 13)
            => "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
               "Time of one step of a compaction";
        /// The same steps: each compacts a part of the index, or of the blocks.
        index_compaction_step_milliseconds: Histogram = doubling(0.5, 14)
            => "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
               "Time of one step of a compaction, of the index or of blocks";
        /// A whole compaction, pauses included.
        compaction_milliseconds: Histogram = doubling(100.0, 14)
            => "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
               "Time of a whole compaction, pauses included";
        /// Frames of the log, as etcd counts them.
        wal_bytes: Gauge => "etcd_disk_wal_write_bytes_total", "Bytes of frames written to the log";
        defragments_running: Gauge => "etcd_disk_defrag_inflight", "1 while a Defragment call runs";
        /// Completion time of the last compaction since the start, in seconds since the Unix epoch.
        compaction_last: Gauge
            => "etcd_debugging_mvcc_db_compaction_last", "Unix time of the last compaction since the start";
        compacted_records: Counter
            => "etcd_debugging_mvcc_db_compaction_keys", "Records dropped by compactions";
        // Metrics without an etcd name.
        /// Bytes written by the log: frames, padding, segment heads, preallocation.
        log_written_bytes: Counter
            => "kv_server_log_written_bytes",
               "Bytes the log gave to the disk, padding and heads of segments included";
        /// Bytes written by the store, by purpose.
        store_written_bytes: Family<WritePurpose, Counter>
            => "kv_server_store_written_bytes", "Bytes the store gave to the disk";
        /// Uncompressed bytes of records written to the store.
        record_bytes: Counter
            => "kv_server_store_record_bytes",
               "Bytes of records that became part of a checkpoint, before compression";
        /// Bytes of applied commands: the minimum to be written once.
        command_bytes: Counter
            => "kv_server_command_bytes",
               "Bytes of applied commands; log and store bytes over these are the write amplification";
        /// CPU time of the parts of the state that this leader has recounted, and its passes over all of it.
        recount_seconds: Counter<f64, AtomicU64>
            => "kv_server_recount_cpu_seconds",
               "CPU time that this leader spent on recounting the state, to compare it with that of others";
        recount_passes: Counter
            => "kv_server_recount_passes", "Passes over the whole state that this leader has finished";
    }
}

impl DiskMetrics {
    /// Returns all bytes written by the store.
    pub fn store_bytes(&self) -> u64 {
        let purposes = ["checkpoint", "compaction", "catalogue", "snapshot"];
        let written = purposes
            .map(|purpose| self.store_written_bytes.get(&WritePurpose { purpose }).map(|it| it.get()));
        written.into_iter().flatten().sum()
    }
}

/// The purpose of a write by the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WritePurpose {
    pub purpose: &'static str,
}
