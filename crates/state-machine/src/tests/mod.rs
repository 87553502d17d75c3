//! (scripts follow)
