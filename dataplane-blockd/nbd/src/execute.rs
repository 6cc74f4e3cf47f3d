//! One request: checked against the protocol and the export, then done.
//!
//! The checks come in the order in which a client can do something about them: what no request may be (command, flags),
//! what this export forbids (writing), where the request points (range, alignment), how large it is.

use crate::{
    device::{BlockDevice, DeviceError, Durability, Geometry},
    reply::{Outcome, Style},
    request::Request,
    wire::{BASE_ALLOCATION_ID, ErrorCode, cmd, cmd_flag},
};
use bytes::Bytes;

/// Extents in one reply: 128 KiB at most, far below the protocol's bound. A client that wants more asks again.
const EXTENTS_MAX: usize = 8192;

/// What was negotiated, as far as requests depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) style: Style,
    pub(crate) block_status: bool,
}

/// Answers a request. `payload` is what came with it.
pub(crate) async fn execute(
    device: &dyn BlockDevice,
    terms: Terms,
    request: &Request,
    payload: Bytes,
) -> Outcome {
    match check(device, terms, request, &payload) {
        Ok(length) => run(device, terms, request, length, payload)
            .await
            .unwrap_or_else(|error| refusal(&error)),
        Err((code, message)) => Outcome::failed(code, message),
    }
}

fn refusal(error: &DeviceError) -> Outcome {
    let code = match error {
        DeviceError::Io(_) => ErrorCode::Io,
        DeviceError::NoSpace(_) => ErrorCode::NoSpace,
        DeviceError::ReadOnly => ErrorCode::NotPermitted,
        // Both mean that this connection has no future.
        DeviceError::Fenced | DeviceError::Closing => ErrorCode::ShuttingDown,
    };
    Outcome::failed(code, error.to_string())
}

type Refused = (ErrorCode, &'static str);

/// The effect length of a request that may run.
fn check(device: &dyn BlockDevice, terms: Terms, request: &Request, payload: &Bytes) -> Result<u64, Refused> {
    use ErrorCode::{Invalid, NoSpace, NotPermitted, Overflow};
    let extended = terms.style == Style::Extended;
    let own_flags = match request.command {
        cmd::READ if terms.style == Style::Simple => 0,
        cmd::READ => cmd_flag::DF,
        cmd::WRITE if extended => cmd_flag::PAYLOAD_LEN,
        cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => 0,
        cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
        cmd::BLOCK_STATUS if extended => cmd_flag::REQ_ONE | cmd_flag::PAYLOAD_LEN,
        cmd::BLOCK_STATUS => cmd_flag::REQ_ONE,
        _ => return Err((Invalid, "unknown command")),
    };
    if request.flags & !(own_flags | cmd_flag::FUA) != 0 {
        return Err((Invalid, "a flag that does not belong to this command"));
    }
    let has_payload = request.has(cmd_flag::PAYLOAD_LEN);
    if extended && (request.command == cmd::WRITE) != has_payload && request.command != cmd::BLOCK_STATUS {
        return Err((Invalid, "a write is a request with a payload"));
    }
    let writes = matches!(request.command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
    if writes && device.is_read_only() {
        return Err((NotPermitted, "the export is read-only"));
    }
    if request.command == cmd::FLUSH {
        return match (request.offset, request.length) {
            (0, 0) => Ok(0),
            _ => Err((Invalid, "a flush has neither offset nor length")),
        };
    }
    let length = if request.command == cmd::BLOCK_STATUS {
        if !terms.block_status {
            return Err((Invalid, "no metadata context was negotiated"));
        }
        status_length(request, payload)?
    } else {
        request.length
    };
    let geometry = device.geometry();
    let inside = request
        .offset
        .checked_add(length)
        .is_some_and(|end| end <= geometry.size_bytes);
    if !inside {
        let grows = matches!(request.command, cmd::WRITE | cmd::WRITE_ZEROES);
        return Err((
            if grows { NoSpace } else { Invalid },
            "beyond the end of the export",
        ));
    }
    if (request.offset | length) & u64::from(geometry.block_bytes - 1) != 0 {
        return Err((Invalid, "not aligned to the block size of the export"));
    }
    let too_long = length > u64::from(geometry.payload_bytes_max);
    match request.command {
        cmd::READ if too_long && terms.style == Style::Simple => {
            Err((Invalid, "longer than the largest payload"))
        }
        cmd::READ if too_long => Err((Overflow, "longer than the largest payload")),
        cmd::WRITE if too_long => Err((Invalid, "longer than the largest payload")),
        cmd::BLOCK_STATUS if length == 0 => Err((Invalid, "nothing has no status")),
        _ => Ok(length),
    }
}

/// The effect length of a block status request, which may say in its payload for which contexts it asks.
fn status_length(request: &Request, payload: &Bytes) -> Result<u64, Refused> {
    if !request.has(cmd_flag::PAYLOAD_LEN) {
        return Ok(request.length);
    }
    let Some((length, ids)) = payload.split_first_chunk::<8>() else {
        return Err((ErrorCode::Invalid, "the payload is too short for a length"));
    };
    // There is one context, so the only list without unknown and repeated ones has it once.
    if ids != BASE_ALLOCATION_ID.to_be_bytes() {
        return Err((ErrorCode::Invalid, "unknown or repeated metadata contexts"));
    }
    Ok(u64::from_be_bytes(*length))
}

async fn run(
    device: &dyn BlockDevice,
    terms: Terms,
    request: &Request,
    length: u64,
    payload: Bytes,
) -> Result<Outcome, DeviceError> {
    let offset = request.offset;
    let durability = if request.has(cmd_flag::FUA) {
        Durability::Durable
    } else {
        Durability::Acknowledged
    };
    match request.command {
        cmd::FLUSH => device.flush().await?,
        // What a request for nothing means is not specified; that it is not an attack, is.
        _ if length == 0 => {}
        cmd::READ => {
            let length = u32::try_from(length).expect("checked against the largest payload");
            let pieces = device.read(offset, length).await?;
            let read: u64 = pieces.iter().map(crate::device::Piece::length_bytes).sum();
            assert_eq!(read, u64::from(length), "a device reads what it was asked for");
            let whole = request.has(cmd_flag::DF);
            return Ok(Outcome::Data { pieces, whole });
        }
        cmd::WRITE => device.write(offset, payload, durability).await?,
        cmd::TRIM => device.trim(offset, length, durability).await?,
        cmd::CACHE => device.cache(offset, length).await?,
        cmd::WRITE_ZEROES => {
            let allow_hole = !request.has(cmd_flag::NO_HOLE);
            if request.has(cmd_flag::FAST_ZERO) && !device.zeroes_fast(allow_hole) {
                return Ok(Outcome::failed(
                    ErrorCode::Unsupported,
                    "zeroing is no faster than writing here",
                ));
            }
            device
                .write_zeroes(offset, length, allow_hole, durability)
                .await?;
        }
        cmd::BLOCK_STATUS => {
            debug_assert!(terms.style != Style::Simple, "contexts need structured replies");
            let extents_max = if request.has(cmd_flag::REQ_ONE) {
                1
            } else {
                EXTENTS_MAX
            };
            let extents = device.extents(offset, length, extents_max).await?;
            return Ok(Outcome::Status(extents));
        }
        other => unreachable!("command {other} was refused by check"),
    }
    Ok(Outcome::Done)
}

/// Whether a write's payload is short enough to be read at all; a longer one is skipped.
pub(crate) fn is_payload_welcome(geometry: &Geometry, request: &Request) -> bool {
    request.payload_bytes <= u64::from(geometry.payload_bytes_max)
}
