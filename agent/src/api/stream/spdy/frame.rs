//! Frames: what is on the wire, and what it means.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::header_block::{Deflater, HeaderError, Headers, Inflater};

const VERSION: u16 = 3;
/// How long a control frame may be. Data frames may have any length: they are handed on in pieces.
const MAX_CONTROL: usize = 64 << 10;
/// The length of a piece of data.
pub(super) const MAX_DATA: usize = 16 << 10;
const HEADER: usize = 8;
const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

/// The number of a stream. A client's are odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResetStatus(pub(crate) u32);

impl ResetStatus {
    pub(crate) const PROTOCOL_ERROR: Self = Self(1);
    pub(crate) const INVALID_STREAM: Self = Self(2);
    pub(crate) const REFUSED_STREAM: Self = Self(3);
    pub(crate) const CANCEL: Self = Self(5);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(7);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    SynStream {
        stream: StreamId,
        priority: u8,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    },
    SynReply {
        stream: StreamId,
        fin: bool,
        headers: Headers,
    },
    RstStream {
        stream: StreamId,
        status: ResetStatus,
    },
    /// Its settings are about flow control, which the agent does not take part in.
    Settings,
    Ping(u32),
    GoAway {
        last: StreamId,
        status: u32,
    },
    Headers {
        stream: StreamId,
        fin: bool,
        headers: Headers,
    },
    WindowUpdate {
        stream: StreamId,
        delta: u32,
    },
    /// A piece of a data frame. Only the last piece can have `fin`.
    Data {
        stream: StreamId,
        fin: bool,
        data: Bytes,
    },
}

/// An error of the connection as a whole: what follows cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame is of SPDY version {0}, not 3")]
    Version(u16),
    #[error("a control frame of type {kind} has {length} bytes")]
    Length { kind: u16, length: usize },
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

/// Reads frames from bytes as they arrive.
#[derive(Debug)]
pub(super) struct Decoder {
    inflater: Inflater,
    state: State,
}

#[derive(Debug)]
enum State {
    Header,
    Data { stream: StreamId, fin: bool, rest: usize },
    Skip { rest: usize },
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { inflater: Inflater::new(), state: State::Header }
    }

    /// Takes the next frame out of `input`; `None` when more bytes are needed for it.
    pub(super) fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            match &mut self.state {
                State::Data { stream, fin, rest } => {
                    if *rest > 0 && input.is_empty() {
                        return Ok(None);
                    }
                    let length = (*rest).min(input.len()).min(MAX_DATA);
                    let data = input.split_to(length).freeze();
                    *rest -= length;
                    let is_last = *rest == 0;
                    let frame = Frame::Data { stream: *stream, fin: *fin && is_last, data };
                    if is_last {
                        self.state = State::Header;
                    }
                    return Ok(Some(frame));
                }
                State::Skip { rest } => {
                    let length = (*rest).min(input.len());
                    input.advance(length);
                    *rest -= length;
                    if *rest > 0 {
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
                State::Header => {
                    let Some(header) = input.first_chunk::<HEADER>().copied() else { return Ok(None) };
                    let [a, b, c, d, flags, high, middle, low] = header;
                    let length = u32::from_be_bytes([0, high, middle, low]);
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    if a & 0x80 == 0 {
                        input.advance(HEADER);
                        let stream = StreamId(u32::from_be_bytes([a, b, c, d]));
                        self.state = State::Data { stream, fin: flags & FIN != 0, rest: length };
                        continue;
                    }
                    let version = u16::from_be_bytes([a & 0x7f, b]);
                    if version != VERSION {
                        return Err(FrameError::Version(version));
                    }
                    let kind = u16::from_be_bytes([c, d]);
                    if !(1..=9).contains(&kind) || kind == 5 {
                        input.advance(HEADER);
                        self.state = State::Skip { rest: length };
                        continue;
                    }
                    if length > MAX_CONTROL {
                        return Err(FrameError::Length { kind, length });
                    }
                    if input.len() < HEADER + length {
                        return Ok(None);
                    }
                    input.advance(HEADER);
                    let body = input.split_to(length);
                    return self.control(kind, flags, &body).map(Some);
                }
            }
        }
    }

    fn control(&mut self, kind: u16, flags: u8, body: &[u8]) -> Result<Frame, FrameError> {
        let wrong = FrameError::Length { kind, length: body.len() };
        let fixed = |length: usize| if body.len() == length { Ok(()) } else { Err(wrong) };
        let word = |at: usize| {
            let bytes = body.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(wrong)?;
            Ok::<_, FrameError>(u32::from_be_bytes(*bytes))
        };
        let stream = || Ok::<_, FrameError>(StreamId(word(0)? & 0x7fff_ffff));
        let fin = flags & FIN != 0;
        Ok(match kind {
            1 => {
                let (stream, block) = (stream()?, body.get(10..).ok_or(wrong)?);
                let priority = body.get(8).ok_or(wrong)? >> 5;
                let unidirectional = flags & UNIDIRECTIONAL != 0;
                let headers = self.inflater.headers(block)?;
                Frame::SynStream { stream, priority, fin, unidirectional, headers }
            }
            2 => {
                let (stream, block) = (stream()?, body.get(4..).ok_or(wrong)?);
                Frame::SynReply { stream, fin, headers: self.inflater.headers(block)? }
            }
            3 => {
                fixed(8)?;
                Frame::RstStream { stream: stream()?, status: ResetStatus(word(4)?) }
            }
            4 => {
                let count = usize::try_from(word(0)?).unwrap_or(usize::MAX);
                fixed(count.saturating_mul(8).saturating_add(4))?;
                Frame::Settings
            }
            6 => {
                fixed(4)?;
                Frame::Ping(word(0)?)
            }
            7 => {
                fixed(8)?;
                Frame::GoAway { last: stream()?, status: word(4)? }
            }
            8 => {
                let (stream, block) = (stream()?, body.get(4..).ok_or(wrong)?);
                Frame::Headers { stream, fin, headers: self.inflater.headers(block)? }
            }
            9 => {
                fixed(8)?;
                Frame::WindowUpdate { stream: stream()?, delta: word(4)? & 0x7fff_ffff }
            }
            _ => return Err(wrong),
        })
    }
}

/// Writes frames.
#[derive(Debug, Default)]
pub(super) struct Encoder(Deflater);

impl Encoder {
    pub(super) fn encode(&mut self, frame: &Frame, out: &mut BytesMut) {
        let fin = |fin: bool| if fin { FIN } else { 0 };
        match frame {
            Frame::SynStream { stream, priority, fin: ends, unidirectional, headers } => {
                let flags = fin(*ends) | if *unidirectional { UNIDIRECTIONAL } else { 0 };
                let block = self.0.block(headers);
                control(out, 1, flags, 10 + block.len());
                out.put_u32(stream.0);
                out.put_u32(0);
                out.put_slice(&[(priority & 7) << 5, 0]);
                out.put_slice(&block);
            }
            Frame::SynReply { stream, fin: ends, headers } => {
                let block = self.0.block(headers);
                control(out, 2, fin(*ends), 4 + block.len());
                out.put_u32(stream.0);
                out.put_slice(&block);
            }
            Frame::RstStream { stream, status } => {
                control(out, 3, 0, 8);
                out.put_u32(stream.0);
                out.put_u32(status.0);
            }
            Frame::Settings => {
                control(out, 4, 0, 4);
                out.put_u32(0);
            }
            Frame::Ping(id) => {
                control(out, 6, 0, 4);
                out.put_u32(*id);
            }
            Frame::GoAway { last, status } => {
                control(out, 7, 0, 8);
                out.put_u32(last.0);
                out.put_u32(*status);
            }
            Frame::Headers { stream, fin: ends, headers } => {
                let block = self.0.block(headers);
                control(out, 8, fin(*ends), 4 + block.len());
                out.put_u32(stream.0);
                out.put_slice(&block);
            }
            Frame::WindowUpdate { stream, delta } => {
                control(out, 9, 0, 8);
                out.put_u32(stream.0);
                out.put_u32(*delta);
            }
            Frame::Data { stream, fin: ends, data } => {
                let mut rest = &data[..];
                loop {
                    let (piece, after) = rest.split_at(rest.len().min(MAX_DATA));
                    out.put_u32(stream.0 & 0x7fff_ffff);
                    put_flags_and_length(out, fin(*ends && after.is_empty()), piece.len());
                    out.put_slice(piece);
                    rest = after;
                    if rest.is_empty() {
                        break;
                    }
                }
            }
        }
    }
}

fn control(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    put_flags_and_length(out, flags, length);
}

/// No frame of the agent's is longer than the 24 bits can say.
fn put_flags_and_length(out: &mut BytesMut, flags: u8, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX) & 0x00ff_ffff;
    out.put_u32(u32::from(flags) << 24 | length);
}

#[cfg(test)]
mod tests;
