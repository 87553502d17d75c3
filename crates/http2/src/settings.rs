//! SETTINGS of both sides (RFC 9113, section 6.5, and RFC 8441).

use crate::error::{ErrorCode, Violation, protocol};
use crate::flow::WINDOW_MAX;
use crate::limits::Limits;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// RFC 8441. Only its value is checked: extended CONNECT is not offered.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// The settings that this side announces, once, at the start.
pub(crate) fn announced(limits: &Limits) -> [(u16, u32); 5] {
    let list = u32::try_from(limits.header_list_bytes_max).unwrap_or(u32::MAX);
    [
        (HEADER_TABLE_SIZE, limits.header_table_bytes_max),
        (MAX_CONCURRENT_STREAMS, limits.streams_max),
        (INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (MAX_FRAME_SIZE, limits.frame_bytes_max),
        (MAX_HEADER_LIST_SIZE, list),
    ]
}

/// The peer's settings that matter to a server. MAX_CONCURRENT_STREAMS does not: the server never pushes.
/// The limit on header lists is advisory (section 6.5.2), and the owner's header blocks are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    pub(crate) initial_window: u32,
    pub(crate) frame_bytes_max: u32,
    /// Smallest size announced. Below the default, the next header block sets the table's size to 0 (RFC
    /// 7541, 4.2).
    pub(crate) header_table_bytes_min: u32,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings { initial_window: 65_535, frame_bytes_max: 16_384, header_table_bytes_min: 4096 }
    }
}

impl PeerSettings {
    /// Applies the values of one frame in order. The payload length must be a multiple of six.
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), Violation> {
        for setting in payload.chunks_exact(6) {
            let id = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match id {
                HEADER_TABLE_SIZE => self.header_table_bytes_min = self.header_table_bytes_min.min(value),
                ENABLE_PUSH if value > 1 => return Err(protocol("ENABLE_PUSH is neither 0 nor 1")),
                ENABLE_CONNECT_PROTOCOL if value > 1 => {
                    return Err(protocol("ENABLE_CONNECT_PROTOCOL is neither 0 nor 1"));
                }
                INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(Violation::Connection(
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "INITIAL_WINDOW_SIZE exceeds 2^31-1",
                    ));
                }
                INITIAL_WINDOW_SIZE => self.initial_window = value,
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(protocol("MAX_FRAME_SIZE is out of range"));
                }
                MAX_FRAME_SIZE => self.frame_bytes_max = value,
                // Unknown settings must be ignored.
                _ => {}
            }
        }
        Ok(())
    }
}
