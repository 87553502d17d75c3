//! Flags that name output files.

use clap::{ArgMatches, Args};
use std::path::{Path, PathBuf};

/// Files to write a report to.
#[derive(Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write a self-contained HTML report with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all measurements as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Flags of `report`.
#[derive(Args, Debug)]
pub struct ReportFlags {
    /// Result of --json
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Rows to include; with up to 32 rows, a page has all measurements and plots of each
    #[arg(long, value_delimiter = ',', value_name = "ROW,…")]
    pub rows: Vec<String>,
    /// Write the result without plots as JSON, small enough to commit; `report` renders it to the same
    /// Markdown
    #[arg(long, value_name = "FILE")]
    pub extract: Option<PathBuf>,
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
