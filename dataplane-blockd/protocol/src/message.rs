//! From messages to frames and back.

use crate::{
    Frame, FrameHeader, FrameKind, Operation, PREVIOUS_VERSION, PROTOCOL_VERSION, Refusal, Reply, Request,
    cursor::{DecodeError, Encoder},
};
use bytes::Bytes;

/// Whether this build speaks a version.
pub(crate) fn is_spoken(version: u8) -> bool {
    (PREVIOUS_VERSION..=PROTOCOL_VERSION).contains(&version)
}

/// The versions that this build speaks, as a refusal.
pub(crate) fn versions() -> Refusal {
    Refusal::Version {
        lowest: PREVIOUS_VERSION,
        highest: PROTOCOL_VERSION,
    }
}

/// The frame of a request, in a version that this build speaks.
pub fn encode_request(version: u8, number: u64, request: &Request) -> Frame {
    let mut encoder = Encoder::default();
    let data = request.encode(version, &mut encoder);
    frame(
        version,
        FrameKind::Request,
        request.operation() as u8,
        0,
        number,
        encoder,
        data,
    )
}

/// The frame of a reply, in the version of its request.
pub fn encode_reply(version: u8, number: u64, reply: &Reply) -> Frame {
    let mut encoder = Encoder::default();
    let data = reply.encode(version, &mut encoder);
    frame(
        version,
        FrameKind::Reply,
        reply.operation() as u8,
        0,
        number,
        encoder,
        data,
    )
}

/// The frame of a refusal, in the version of its request, or the lowest we speak if we do not speak that one; `operation` is the
/// code that was asked for, known or not.
pub fn encode_refusal(version: u8, number: u64, operation: u8, refusal: &Refusal) -> Frame {
    let version = if is_spoken(version) {
        version
    } else {
        PREVIOUS_VERSION
    };
    let mut encoder = Encoder::default();
    refusal.encode(&mut encoder);
    let status = refusal.code() as u8;
    frame(
        version,
        FrameKind::Reply,
        operation,
        status,
        number,
        encoder,
        Bytes::new(),
    )
}

fn frame(
    version: u8,
    kind: FrameKind,
    operation: u8,
    status: u8,
    request: u64,
    body: Encoder,
    data: Bytes,
) -> Frame {
    Frame {
        header: FrameHeader {
            version,
            kind,
            operation,
            status,
            request,
        },
        body: body.finish(),
        data,
    }
}

/// The request in a frame, or why it is refused. A version that we do not speak is refused unless it is a hello, whose fields
/// never change.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::UnknownOperation`], [`Refusal::Version`].
pub fn decode_request(frame: &Frame) -> Result<Request, Refusal> {
    let header = &frame.header;
    let operation =
        Operation::from_code(header.operation).ok_or(Refusal::UnknownOperation(header.operation))?;
    if !is_spoken(header.version) && operation != Operation::Hello {
        return Err(versions());
    }
    if header.kind != FrameKind::Request || header.status != 0 {
        return Err(Refusal::Malformed("a reply where a request was expected".into()));
    }
    Request::decode(header.version, operation, frame.body.clone(), frame.data.clone())
        .map_err(|error| Refusal::Malformed(error.to_string()))
}

/// The reply or refusal in a frame.
///
/// # Errors
/// If it is neither.
pub fn decode_reply(frame: &Frame) -> Result<Result<Reply, Refusal>, DecodeError> {
    let header = &frame.header;
    if header.kind != FrameKind::Reply {
        return Err(DecodeError::Invalid {
            field: "kind",
            value: 1,
        });
    }
    if !is_spoken(header.version) {
        return Err(DecodeError::Version {
            version: header.version,
        });
    }
    if header.status != 0 {
        if !frame.data.is_empty() {
            return Err(DecodeError::Trailing {
                bytes: frame.data.len(),
            });
        }
        return Refusal::decode(header.status, frame.body.clone()).map(Err);
    }
    let operation = Operation::from_code(header.operation).ok_or(DecodeError::Invalid {
        field: "operation",
        value: header.operation.into(),
    })?;
    Reply::decode(header.version, operation, frame.body.clone(), frame.data.clone()).map(Ok)
}
