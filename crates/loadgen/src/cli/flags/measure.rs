//! Flags of `suite` and `compare`.

use super::outputs::Outputs;
use crate::client::endpoint::Endpoint;
use clap::Args;
use std::path::PathBuf;

/// What is measured, and how: the same for one system and for two.
#[derive(Args, Debug)]
pub struct MeasureFlags {
    /// docs-3.2, docs-3.0, v2.2-rc, arm-graviton2, ibm-pmem, all of these, coordination, or core (the
    /// default)
    #[arg(value_name = "SUITE")]
    pub suites: Vec<String>,
    /// Only the rows of these names
    #[arg(long, value_delimiter = ',', value_name = "ROW,…")]
    pub rows: Vec<String>,
    /// Members of each fresh cluster, instead of as many as each suite had
    #[arg(long)]
    pub members: Option<usize>,
    /// How often each row is measured, instead of 3 times or as its suite had it
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Multiplies the number of requests of every row
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Seconds of measuring that a row may use, all sides and rounds together (0: no limit; default: 200
    /// times the scale)
    #[arg(long, value_name = "SECONDS")]
    pub row_seconds: Option<f64>,
    /// The least that a round may last: a row that is over sooner is begun again with more requests (0: as
    /// many as published; default: 3, and less with a scale below 1)
    #[arg(long, value_name = "SECONDS")]
    pub round_seconds: Option<f64>,
    /// Where fresh clusters keep their files; a directory on a real disk, or the writes mean nothing
    #[arg(long, visible_alias = "dir", default_value = ".")]
    pub data_dir: PathBuf,
    /// Where fresh clusters keep their logs, if elsewhere
    #[arg(long)]
    pub wal_dir: Option<PathBuf>,
    /// Measure on each of these directories instead, as ram=/dev/shm,ssd=/var/tmp; the report names the media
    #[arg(long, value_delimiter = ',', value_name = "NAME=DIR,…", value_parser = medium,
          conflicts_with_all = ["data_dir", "wal_dir"])]
    pub media: Vec<(String, PathBuf)>,
    /// First bytes of all keys that rows write into clusters that run already; empty: as in the write-ups
    #[arg(long, default_value = "lgen/")]
    pub prefix: String,
    /// Print the rows that would be measured, and measure nothing
    #[arg(long)]
    pub list: bool,
    /// Print the rows with the command of each, start nothing, and send nothing
    #[arg(long, conflicts_with = "list")]
    pub dry_run: bool,
    /// Keep the rows that the file of --json has from an earlier run of this command, and measure the others;
    /// the file is written after each row
    #[arg(long)]
    pub resume: bool,
    /// Heads the report
    #[arg(long)]
    pub title: Option<String>,
    #[command(flatten)]
    pub outputs: Outputs,
}

fn medium(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, dir)| !name.is_empty() && !dir.is_empty());
    let (name, dir) = parts.ok_or("expected NAME=DIR")?;
    Ok((name.to_owned(), dir.into()))
}

/// Flags of `suite`.
#[derive(Args, Debug)]
pub struct SuiteFlags {
    /// Start fresh clusters of this program instead of measuring --endpoints
    #[arg(long, value_name = "NAME=PATH")]
    pub program: Option<String>,
    /// How the report calls the cluster of --endpoints
    #[arg(long, default_value = "cluster", conflicts_with = "program")]
    pub name: String,
    #[command(flatten)]
    pub measure: MeasureFlags,
}

/// Flags of `compare`.
#[derive(Args, Debug)]
pub struct CompareFlags {
    /// The first program, or only its name where --a-endpoints says where it runs
    #[arg(long, value_name = "NAME=PATH")]
    pub a: Option<String>,
    /// The second program
    #[arg(long, value_name = "NAME=PATH")]
    pub b: Option<String>,
    /// A cluster that runs already, instead of a program to start
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub a_endpoints: Vec<Endpoint>,
    /// The same for the second
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub b_endpoints: Vec<Endpoint>,
    #[command(flatten)]
    pub measure: MeasureFlags,
}
