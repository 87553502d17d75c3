//! Flags of `suite` and `compare`.

use super::outputs::Outputs;
use crate::client::endpoint::Endpoint;
use clap::Args;
use std::path::PathBuf;

/// Rows and method of `suite` and `compare`.
#[derive(Args, Debug)]
pub struct MeasureFlags {
    /// docs-3.2, docs-3.0, v2.2-rc, arm-graviton2, ibm-pmem, all (these five), coordination, or core
    /// (default)
    #[arg(value_name = "SUITE")]
    pub suites: Vec<String>,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_name = "ROW,…")]
    pub rows: Vec<String>,
    /// Members of each started cluster (default: as published)
    #[arg(long)]
    pub members: Option<usize>,
    /// Rounds of each row (default: as published, or 3)
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Factor of the number of requests of each row
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Time budget of a row over all sides and rounds (0: none; default: 200 times the scale). Rows with a
    /// published method ignore it
    #[arg(long, value_name = "SECONDS")]
    pub row_seconds: Option<f64>,
    /// Minimum duration of a round: shorter runs are repeated, equally often on both sides (default: 3, less
    /// with a scale below 1)
    #[arg(long, value_name = "SECONDS")]
    pub round_seconds: Option<f64>,
    /// Parent of the data directories of started clusters; must be on the disk to measure
    #[arg(long, visible_alias = "dir", default_value = ".")]
    pub data_dir: PathBuf,
    /// Parent of their WAL directories (default: in the data directories)
    #[arg(long)]
    pub wal_dir: Option<PathBuf>,
    /// Measure on each of these media instead, for example ram=/dev/shm,ssd=/var/tmp
    #[arg(long, value_delimiter = ',', value_name = "NAME=DIR,…", value_parser = medium,
          conflicts_with_all = ["data_dir", "wal_dir"])]
    pub media: Vec<(String, PathBuf)>,
    /// Prefix of all keys in existing clusters (empty: as published)
    #[arg(long, default_value = "lgen/")]
    pub prefix: String,
    /// Print the rows without measuring them
    #[arg(long)]
    pub list: bool,
    /// Print the rows and their commands without measuring them
    #[arg(long, conflicts_with = "list")]
    pub dry_run: bool,
    /// Resume an interrupted run: keep the complete rows in the file of --json
    #[arg(long)]
    pub resume: bool,
    /// Title of the report
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
    /// Start clusters of this program instead of using --endpoints
    #[arg(long, value_name = "NAME=PATH")]
    pub program: Option<String>,
    /// Name of the cluster of --endpoints in the report
    #[arg(long, default_value = "cluster", conflicts_with = "program")]
    pub name: String,
    #[command(flatten)]
    pub measure: MeasureFlags,
}

/// Flags of `compare`.
#[derive(Args, Debug)]
pub struct CompareFlags {
    /// First program, or a name for --a-endpoints
    #[arg(long, value_name = "NAME=PATH")]
    pub a: Option<String>,
    /// Second program, or a name for --b-endpoints
    #[arg(long, value_name = "NAME=PATH")]
    pub b: Option<String>,
    /// Existing cluster, instead of a program to start
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub a_endpoints: Vec<Endpoint>,
    /// Existing second cluster
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub b_endpoints: Vec<Endpoint>,
    #[command(flatten)]
    pub measure: MeasureFlags,
}
