//! Callers of operations with several calls.

pub mod round_robin; // connections to the endpoints
pub mod tasks; // callers with a task each

pub mod pages; // ranges in pages

pub mod kubernetes; // operations of API servers, and their watchers
pub mod stm; // transactions of several calls
pub mod ycsb; // operations of YCSB
