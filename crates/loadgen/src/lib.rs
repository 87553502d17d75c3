//! The load generator (see ARCHITECTURE.md).
