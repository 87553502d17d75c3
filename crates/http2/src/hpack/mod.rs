//! Header compression (RFC 7541).
//!
//! The decoder is complete. The encoder follows a static plan: it never uses the dynamic table, so a block
//! is a constant that can be written to any connection.

mod decode; // blocks to fields
mod encode; // constant blocks
mod huffman; // the string code
mod integer; // prefix integers
mod shape; // blocks that name the same
mod table; // static and dynamic table

pub(crate) use decode::{Decoder, Undecodable};
pub use encode::HeaderBlock;
pub use shape::Varying;
pub(crate) use shape::{Shape, VALUE_BYTES_MAX};
pub(crate) use table::ENTRY_OVERHEAD;
