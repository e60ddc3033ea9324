//! Frames: a little-endian u32 length and that many bytes of JSON. A reader that finds a frame it cannot understand
//! still knows where the next one begins. It skips such a frame, which costs at most the frame's own request.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

use super::RequestId;

/// Largest frame either side accepts, bytes.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// A longer frame is passed over while it is no longer than this, bytes. What announces more is not a frame at all
/// (four letters of text are more than 512 MiB): the boundary is lost.
const PASSED_OVER_BYTES_MAX: usize = 256 << 20;
/// Bytes of a frame in which the id of its request must stand.
const HEAD_BYTES: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge { bytes: usize, limit: usize },
    /// Told without the words of the frame, which may be a user's.
    #[error("frame is not a known message: {:?} error at column {}", .0.classify(), .0.column())]
    Json(#[from] serde_json::Error),
    #[error("pipe: {0}")]
    Io(#[from] io::Error),
}

/// What a frame held.
#[derive(Debug)]
pub enum Frame<T> {
    Message(T),
    /// Nothing that this side understands; the next frame can be read. `id`: the request it is about, as far as it
    /// can be told.
    Strange {
        id: Option<RequestId>,
        error: FrameError,
    },
}

/// Appends one frame to `buffer`, or nothing.
pub fn encode<T: Serialize>(message: &T, buffer: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    if let Err(error) = serde_json::to_writer(&mut *buffer, message) {
        buffer.truncate(start);
        return Err(error.into());
    }
    let bytes = buffer.len() - start - 4;
    if bytes > FRAME_BYTES_MAX {
        buffer.truncate(start);
        return Err(FrameError::TooLarge { bytes, limit: FRAME_BYTES_MAX });
    }
    buffer[start..start + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(())
}

/// Writes one frame and flushes it.
pub fn write_frame<T: Serialize>(mut to: impl Write, message: &T) -> Result<(), FrameError> {
    let mut buffer = Vec::new();
    encode(message, &mut buffer)?;
    to.write_all(&buffer)?;
    Ok(to.flush()?)
}

/// Reads one frame, to its end; `None` at a clean end of file. An error means that no more frames can be read.
pub fn next_frame<T: DeserializeOwned>(mut from: impl Read) -> Result<Option<Frame<T>>, FrameError> {
    let mut head = [0u8; 4];
    match from.read(&mut head)? {
        0 => return Ok(None),
        n => from.read_exact(&mut head[n..])?,
    }
    let bytes = u32::from_le_bytes(head) as usize;
    let too_large = FrameError::TooLarge { bytes, limit: FRAME_BYTES_MAX };
    if bytes > PASSED_OVER_BYTES_MAX {
        return Err(too_large);
    }
    let kept = if bytes > FRAME_BYTES_MAX { HEAD_BYTES } else { bytes };
    let mut body = Vec::new();
    from.by_ref().take(kept as u64).read_to_end(&mut body)?;
    let passed_over = io::copy(&mut from.take((bytes - kept) as u64), &mut io::sink())?;
    if body.len() as u64 + passed_over < bytes as u64 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let message = match kept == bytes {
        true => serde_json::from_slice(&body).map_err(FrameError::Json),
        false => Err(too_large),
    };
    Ok(Some(message.map_or_else(|error| Frame::Strange { id: id_of(&body), error }, Frame::Message)))
}

/// Reads one frame that must be a message; `None` at a clean end of file.
pub fn read_frame<T: DeserializeOwned>(from: impl Read) -> Result<Option<T>, FrameError> {
    match next_frame(from)? {
        None => Ok(None),
        Some(Frame::Message(message)) => Ok(Some(message)),
        Some(Frame::Strange { error, .. }) => Err(error),
    }
}

/// The request that a frame is about, read off its beginning: `{"name":{"id":7`. No text of a user stands before it.
pub fn id_of(body: &[u8]) -> Option<RequestId> {
    let head = &body[..body.len().min(HEAD_BYTES)];
    let name = head.strip_prefix(b"{\"")?;
    let letters = name.iter().take_while(|b| b.is_ascii_lowercase() || **b == b'_').count();
    let digits = name[letters..].strip_prefix(b"\":{\"id\":")?;
    let digits = &digits[..digits.iter().take_while(|b| b.is_ascii_digit()).count()];
    std::str::from_utf8(digits).ok()?.parse().ok()
}
