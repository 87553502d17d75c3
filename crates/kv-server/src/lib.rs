//! The server process (see ARCHITECTURE.md).
