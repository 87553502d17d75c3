//! HEADERS and CONTINUATION (sections 6.2, 6.10, 8.1): requests and trailers.
//!
//! Every complete block is decoded, even for a rejected stream, to keep the dynamic table in sync with the
//! peer's.

use std::sync::Arc;

use bytes::Bytes;

use super::event::{Event, StreamId};
use super::flood::CHEAP_TOKENS;
use super::state::{Connection, DrainPhase, PartialBlock};
use crate::error::{ErrorCode, Violation, frame_size, protocol};
use crate::frame::{FrameHeader, Padding, flags, strip_padding, strip_priority};
use crate::head::{Collector, Field, Head, Section, Unfit};
use crate::hpack::{HeaderBlock, Undecodable, Varying};
use crate::stream::{CloseReason, StreamState};

#[derive(Clone, Copy, Debug)]
struct BlockTarget {
    stream: u32,
    end_stream: bool,
    /// A stream error (RFC 7540, 5.3.1).
    self_dependent: bool,
}

/// A head, and the value of the varying field if it is not in the head.
type DecodedHead = (Arc<Head>, Option<Varying>);

impl Connection {
    pub(super) fn on_headers(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        if header.stream.is_multiple_of(2) {
            return Err(protocol("HEADERS on a stream that no client can open"));
        }
        let mut fragment = payload;
        if header.has(flags::PADDED) {
            fragment = strip_padding(fragment)
                .map_err(|Padding| protocol("the padding of HEADERS is as long as its payload"))?;
        }
        let mut self_dependent = false;
        if header.has(flags::PRIORITY) {
            let (priority, rest) =
                strip_priority(fragment).ok_or(frame_size("HEADERS is too short for its priority"))?;
            self_dependent = priority.dependency == header.stream;
            fragment = rest;
        }
        let target =
            BlockTarget { stream: header.stream, end_stream: header.has(flags::END_STREAM), self_dependent };
        if header.has(flags::END_HEADERS) {
            return self.on_block(target, fragment);
        }
        self.block = Some(PartialBlock {
            stream: target.stream,
            end_stream: target.end_stream,
            self_dependent,
            bytes: Vec::new(),
            continuations: 0,
        });
        self.partial_since = Some(self.now);
        self.append(fragment)
    }

    pub(super) fn on_continuation(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), Violation> {
        let Some(block) = &mut self.block else {
            return Err(protocol("CONTINUATION without a header block"));
        };
        block.continuations += 1;
        if block.continuations > self.limits.continuation_frames_max {
            return Err(too_much("a header block has too many fragments"));
        }
        self.append(payload)?;
        if !header.has(flags::END_HEADERS) {
            return Ok(());
        }
        let Some(block) = self.block.take() else { return Ok(()) };
        let PartialBlock { stream, end_stream, self_dependent, bytes, .. } = block;
        self.on_block(BlockTarget { stream, end_stream, self_dependent }, &bytes)
    }

    fn append(&mut self, fragment: &[u8]) -> Result<(), Violation> {
        let Some(block) = &mut self.block else { return Ok(()) };
        if block.bytes.len() + fragment.len() > self.limits.header_block_bytes_max {
            return Err(too_much("a header block is too large"));
        }
        block.bytes.extend_from_slice(fragment);
        Ok(())
    }

    fn on_block(&mut self, target: BlockTarget, block: &[u8]) -> Result<(), Violation> {
        if block.len() > self.limits.header_block_bytes_max {
            return Err(too_much("a header block is too large"));
        }
        let id = target.stream;
        if id > self.last_stream {
            return self.on_request(target, block);
        }
        if let Some(stream) = self.streams.get(id) {
            return if stream.remote_ended {
                self.skip_block(block)?;
                Err(Violation::Stream(id, ErrorCode::STREAM_CLOSED))
            } else {
                self.on_trailers(target, block)
            };
        }
        match self.streams.closed(id) {
            CloseReason::Reset => {
                self.budget.charge(CHEAP_TOKENS);
                self.skip_block(block)
            }
            CloseReason::Ended => {
                Err(Violation::Connection(ErrorCode::STREAM_CLOSED, "HEADERS on a stream that has ended"))
            }
            CloseReason::Unknown => Err(protocol("the id of a new stream is below that of an earlier one")),
        }
    }

    fn on_request(&mut self, target: BlockTarget, block: &[u8]) -> Result<(), Violation> {
        let id = target.stream;
        self.last_stream = id;
        if let DrainPhase::Final { .. } = self.drain {
            // GOAWAY informs the client that the stream was not served. Later frames of the stream are
            // ignored as well.
            self.budget.charge(CHEAP_TOKENS);
            self.streams.remember_reset(id);
            return self.skip_block(block);
        }
        if self.streams.len() >= self.limits.streams_max as usize {
            self.skip_block(block)?;
            return Err(Violation::Stream(id, ErrorCode::REFUSED_STREAM));
        }
        let head = self.head(block)?;
        if target.self_dependent {
            return Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let (head, varying) = match head {
            Ok(head) => head,
            Err(Unfit::Malformed) => return Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR)),
            Err(Unfit::TooLarge) => {
                self.refuse_large(id, target.end_stream);
                return Ok(());
            }
        };
        let content_left = head.content_length;
        if target.end_stream && content_left.is_some_and(|length| length > 0) {
            return Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let receive = self.limits.stream_window_bytes;
        let stream = self.streams.insert(StreamState::new(id, receive, self.peer.initial_window, self.now));
        stream.remote_ended = target.end_stream;
        stream.content_left = content_left;
        self.events.push_back(Event::Request {
            stream: StreamId(id),
            head,
            varying,
            body: Bytes::new(),
            end: target.end_stream,
        });
        Ok(())
    }

    /// Returns the decoded head. It is cached if the same block was decoded with the same version of the
    /// table, or a block that differs in the varying field only.
    fn head(&mut self, block: &[u8]) -> Result<Result<DecodedHead, Unfit>, Violation> {
        let version = self.decoder.version();
        if let Some(version) = version
            && let Some(head) = self.cache.get(version, block)
        {
            return Ok(Ok((Arc::clone(head), None)));
        }
        let varying = self.limits.varying_field;
        let has_shape = !varying.is_empty() && self.decoder.shape(block, varying, &mut self.shape);
        if has_shape && let Some(head) = self.cache.get_shaped(&self.shape) {
            let head = Arc::clone(head);
            self.decoder.apply(&self.shape);
            return Ok(Ok((head, self.shape.value)));
        }
        let fields = self.collect(Section::Head, block)?;
        let list_bytes = fields.bytes();
        let mut head = match fields.head() {
            Ok(head) => head,
            Err(unfit) => return Ok(Err(unfit)),
        };
        if has_shape && self.shape.value.is_some() {
            head.fields.retain(|field| field.name != varying);
            let head = Arc::new(head);
            self.cache.insert_shaped(&self.shape, list_bytes, &head);
            return Ok(Ok((head, self.shape.value)));
        }
        let head = Arc::new(head);
        if has_shape {
            self.cache.insert_shaped(&self.shape, list_bytes, &head);
        }
        if let Some(version) = version
            && self.decoder.version() == Some(version)
        {
            self.cache.insert(version, block, list_bytes, &head);
        }
        Ok(Ok((head, None)))
    }

    fn on_trailers(&mut self, target: BlockTarget, block: &[u8]) -> Result<(), Violation> {
        let id = target.stream;
        let fields = self.collect(Section::Trailers, block)?.trailers();
        let fit = target.end_stream && !target.self_dependent;
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let complete = stream.content_left.is_none_or(|left| left == 0);
        let fields: Vec<Field> = match fields {
            Ok(fields) if fit && complete => fields,
            Ok(_) | Err(Unfit::Malformed) => {
                return Err(Violation::Stream(id, ErrorCode::PROTOCOL_ERROR));
            }
            Err(Unfit::TooLarge) => return Err(Violation::Stream(id, ErrorCode::ENHANCE_YOUR_CALM)),
        };
        stream.remote_ended = true;
        self.events.push_back(Event::Trailers { stream: StreamId(id), fields });
        self.finish_answered(id);
        Ok(())
    }

    /// Responds with status 431 (section 10.5.1). The owner gets no event.
    fn refuse_large(&mut self, id: u32, end_stream: bool) {
        let status = HeaderBlock::new([(":status", "431"), ("content-length", "0")]);
        self.resets.count(self.now);
        let stream = self.streams.insert(StreamState::new(id, 0, 0, self.now));
        stream.remote_ended = end_stream;
        self.write_headers(id, &status, true);
        self.finish(id);
    }

    fn skip_block(&mut self, block: &[u8]) -> Result<(), Violation> {
        self.collect(Section::Trailers, block).map(drop)
    }

    fn collect(&mut self, section: Section, block: &[u8]) -> Result<Collector, Violation> {
        let mut fields = Collector::new(section, self.limits.header_list_bytes_max);
        let decoded = self.decoder.decode(block, |name, value| fields.field(name, value));
        self.decoded_bytes += fields.bytes();
        match decoded {
            Ok(()) => Ok(fields),
            Err(Undecodable) => {
                Err(Violation::Connection(ErrorCode::COMPRESSION_ERROR, "a header block cannot be decoded"))
            }
        }
    }
}

fn too_much(reason: &'static str) -> Violation {
    Violation::Connection(ErrorCode::ENHANCE_YOUR_CALM, reason)
}
