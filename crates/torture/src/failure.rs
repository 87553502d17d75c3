//! Errors of experiments: a text with the attempted action and its object.

use std::fmt;
use std::path::Path;

pub type Result<T> = std::result::Result<T, ExperimentError>;

#[derive(Debug)]
pub struct ExperimentError(String);

impl ExperimentError {
    pub fn new(text: impl Into<String>) -> ExperimentError {
        ExperimentError(text.into())
    }
}

impl fmt::Display for ExperimentError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ExperimentError {}

/// Adds the attempted action to an error.
pub trait Attempt<T> {
    fn attempt(self, what: &str, path: &Path) -> Result<T>;
    fn or_say(self, what: &str) -> Result<T>;
}

impl<T, E: fmt::Display> Attempt<T> for std::result::Result<T, E> {
    fn attempt(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|error| ExperimentError(format!("{what} {}: {error}", path.display())))
    }

    fn or_say(self, what: &str) -> Result<T> {
        self.map_err(|error| ExperimentError(format!("{what}: {error}")))
    }
}
