//! Header compression (RFC 7541).
//!
//! The decoder is complete. The encoder follows a static plan: it never uses the dynamic table, so a block
//! is a constant that can be written to any connection.

mod decode; // blocks to fields
mod encode;
mod huffman; // the string code
mod integer; // prefix integers
mod table; // static and dynamic table // constant blocks

pub(crate) use decode::{Decoder, Undecodable};
pub use encode::HeaderBlock;
pub(crate) use table::ENTRY_OVERHEAD;
