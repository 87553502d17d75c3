//! Flags that name output files.

use clap::Args;
use std::path::{Path, PathBuf};

/// Files to write a report to.
#[derive(Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write the report as one HTML file with plots, which needs nothing else to be shown
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write every figure of every round as a line of CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the tables as Markdown, for a README
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Flags of `report`.
#[derive(Args, Debug)]
pub struct ReportFlags {
    /// What `suite --json` or `compare --json` wrote
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Only the rows of these names; a page of 32 rows or fewer has the figures and plots of each
    #[arg(long, value_delimiter = ',', value_name = "ROW,…")]
    pub rows: Vec<String>,
    #[command(flatten)]
    pub outputs: Outputs,
}

impl Outputs {
    /// Those that were asked for.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.html, &self.csv, &self.markdown].into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.files().next().is_none()
    }
}

/// Whether the path of an output is standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}
