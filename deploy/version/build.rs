//! What a program can say about its own build: for which target, from which commit, of which date.
//!
//! ```text
//!   SOURCE_COMMIT, SOURCE_DATE_EPOCH ──┐
//!   git, where there is one ───────────┴──▶ BUILD_TARGET, BUILD_COMMIT, BUILD_DATE
//! ```
//!
//! * The date is that of the commit and not that of the clock: the same source gives the same program on any
//!   day.
//! * Nothing here fails a build. What cannot be found out is `unknown`.
//! * A plain build marks its commit, since it is unknown whether the tree has other changes.
//!
//! Shared by the programs that print a version; each names this file in its Cargo.toml.

use std::path::{Path, PathBuf};
use std::process::Command;

const UNKNOWN: &str = "unknown";

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let repository = Repository::at(&root);
    let commit = variable("SOURCE_COMMIT")
        .or_else(|| Some(format!("{} (working tree)", repository.as_ref()?.ask(&["rev-parse", "HEAD"])?)));
    let seconds = variable("SOURCE_DATE_EPOCH")
        .or_else(|| repository.as_ref()?.ask(&["log", "-1", "--format=%ct"]))
        .and_then(|text| text.parse().ok());

    tell("BUILD_TARGET", variable("TARGET"));
    tell("BUILD_COMMIT", commit);
    tell("BUILD_DATE", seconds.map(utc));

    println!("cargo::rerun-if-env-changed=SOURCE_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // Any file named here replaces cargo's own rule, which would run this again for every change in the
    // package.
    println!("cargo::rerun-if-changed=../../deploy/version/build.rs");
    for path in repository.iter().flat_map(Repository::marks) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn tell(name: &str, value: Option<String>) {
    println!("cargo::rustc-env={name}={}", value.as_deref().unwrap_or(UNKNOWN));
}

/// A clone of this project, with a `git` to ask about it.
struct Repository<'a> {
    root: &'a Path,
}

impl<'a> Repository<'a> {
    /// `None` without git, in an unpacked archive, and in an archive unpacked inside another repository.
    fn at(root: &'a Path) -> Option<Self> {
        let repository = Repository { root };
        // The way from the top of the working tree to `root`: none, where `root` is the top.
        repository.output(&["rev-parse", "--show-prefix"]).filter(String::is_empty).map(|_| repository)
    }

    fn ask(&self, arguments: &[&str]) -> Option<String> {
        self.output(arguments).filter(|text| !text.is_empty())
    }

    fn output(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("git")
            .arg("--no-optional-locks")
            .arg("-C")
            .arg(self.root)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }

    /// The file that grows with every commit and checkout; without it, the one that names the branch.
    fn marks(&self) -> Option<PathBuf> {
        ["logs/HEAD", "HEAD"]
            .iter()
            .filter_map(|name| self.ask(&["rev-parse", "--git-path", name]))
            .map(|path| self.root.join(path))
            .find(|path| path.exists())
    }
}

/// Seconds since 1970 as a date and time of day.
///
/// Days are counted from a first of March, so that the leap day is the last of its year, and in eras of 400
/// years, which are all of one length. `719_468` days lie between 0000-03-01 and 1970-01-01.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on: 153 days in every five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}
