//! No image of the memory when the process aborts.
//!
//! The memory has what requests had: values, passwords, tokens. So the soft limit of core files is 0, as a
//! program in Go writes none by default. The hard limit stays: `prlimit --core=unlimited --pid PID` permits
//! one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets the soft limit of core files to 0.
pub fn forbid() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
        tracing::warn!(%error, "the limit of core files was not lowered: one would contain passwords and tokens");
    }
}
