//! Flags that name output files.

use clap::{ArgMatches, Args};
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
    /// Iterates over the requested files.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.html, &self.csv, &self.markdown].into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.files().next().is_none()
    }
}

/// Finds two flags with the same file, which would contain only the last output.
pub fn named_twice(flags: &ArgMatches) -> Option<([String; 2], PathBuf)> {
    let mut named: Vec<(PathBuf, &str)> = Vec::new();
    for flag in ["json", "html", "csv", "markdown", "hdr"] {
        let path = flags.try_get_one::<PathBuf>(flag).ok().flatten();
        // Devices accept several outputs.
        let Some(path) = path.filter(|path| !path.exists() || path.is_file()) else { continue };
        let whole = path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or(path.clone());
        if let Some((_, other)) = named.iter().find(|(other, _)| *other == whole) {
            return Some(([other, flag].map(|flag| format!("--{flag}")), path.clone()));
        }
        named.push((whole, flag));
    }
    None
}

pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}
