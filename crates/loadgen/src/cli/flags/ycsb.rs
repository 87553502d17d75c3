//! Flags of `ycsb`.

use super::sending::Sending;
use crate::workload::distribution::{Distribution, Sizes};
use crate::workload::ycsb::{Mix, SCAN_MAX, VALUE_BYTES};
use clap::Args;

/// Flags of `ycsb`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct YcsbFlags {
    /// A core workload of YCSB: a, b, c, d, e or f
    #[arg(long, value_name = "LETTER", default_value_t = 'a', value_parser = letter)]
    pub workload: char,
    /// Records that are loaded first
    #[arg(long, default_value_t = 1000)]
    pub records: u64,
    /// The records are there already, from a run with the same --records and --prefix
    #[arg(long)]
    pub skip_load: bool,
    /// Parts of read, update, insert, scan and rmw instead of those of the workload, as read=70,update=30
    #[arg(long, value_name = "OPERATION=PART,…")]
    pub mix: Option<Mix>,
    /// Instead of that of the workload: uniform, zipfian, latest, hotspot (a fifth of the records has four of
    /// five requests) or sequential
    #[arg(long, value_name = "NAME")]
    pub distribution: Option<Distribution>,
    /// Bytes of each value; LEAST..MOST: all of them with equal probability; zipfian:LEAST..MOST: small ones
    /// more often; or BYTES=PARTS,…: these, by their parts
    #[arg(long, value_name = "BYTES", default_value_t = Sizes::one(VALUE_BYTES))]
    pub val_size: Sizes,
    /// Records in the answer of a scan, at most; each length from 1 on has the same probability
    #[arg(long, default_value_t = SCAN_MAX)]
    pub scan_max: u64,
    /// l: reads and scans are linearizable, s: serializable
    #[arg(long, default_value = "l", value_parser = ["l", "s"])]
    pub consistency: String,
    /// First bytes of all keys
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
