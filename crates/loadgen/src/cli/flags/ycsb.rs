//! Flags of `ycsb`.

use super::sending::Sending;
use crate::workload::distribution::{Distribution, Sizes};
use crate::workload::ycsb::{Mix, SCAN_MAX, VALUE_BYTES};
use clap::Args;

/// Flags of `ycsb`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct YcsbFlags {
    /// YCSB core workload: a, b, c, d, e or f
    #[arg(long, value_name = "LETTER", default_value_t = 'a', value_parser = letter)]
    pub workload: char,
    /// Records to load first
    #[arg(long, default_value_t = 1000)]
    pub records: u64,
    /// Use the records of an earlier run with the same --records and --prefix
    #[arg(long)]
    pub skip_load: bool,
    /// Shares of read, update, insert, scan and rmw, for example read=70,update=30
    #[arg(long, value_name = "OPERATION=PART,…")]
    pub mix: Option<Mix>,
    /// uniform, zipfian, latest, hotspot (80 % of requests to 20 % of records) or sequential
    #[arg(long, value_name = "NAME")]
    pub distribution: Option<Distribution>,
    /// Value size in bytes; MIN..MAX: uniform; zipfian:MIN..MAX: mostly small; or BYTES=SHARE,…
    #[arg(long, value_name = "BYTES", default_value_t = Sizes::one(VALUE_BYTES))]
    pub val_size: Sizes,
    /// Maximum records per scan; lengths from 1 are equally likely
    #[arg(long, default_value_t = SCAN_MAX)]
    pub scan_max: u64,
    /// Reads and scans. l: linearizable, s: serializable
    #[arg(long, default_value = "l", value_parser = ["l", "s"])]
    pub consistency: String,
    /// Prefix of all keys
    #[arg(long, default_value = "ycsb/")]
    pub prefix: String,
    #[command(flatten)]
    pub sending: Sending,
}

fn letter(text: &str) -> Result<char, String> {
    let mut letters = text.chars();
    let letter = letters.next().map(|letter| letter.to_ascii_lowercase());
    let known = letter.filter(|&letter| letters.next().is_none() && Mix::of_workload(letter).is_some());
    known.ok_or_else(|| "expected a, b, c, d, e or f".into())
}
