//! From messages to frames and back.

use crate::{
    Frame, FrameHeader, FrameKind, Operation, PROTOCOL_VERSION, Refusal, Reply, Request,
    cursor::{DecodeError, Encoder},
};
use bytes::Bytes;

/// The frame of a request.
pub fn encode_request(number: u64, request: &Request) -> Frame {
    let mut encoder = Encoder::default();
    let data = request.encode(&mut encoder);
    frame(
        FrameKind::Request,
        request.operation() as u8,
        0,
        number,
        encoder,
        data,
    )
}

/// The frame of a reply.
pub fn encode_reply(number: u64, reply: &Reply) -> Frame {
    let mut encoder = Encoder::default();
    let data = reply.encode(&mut encoder);
    frame(
        FrameKind::Reply,
        reply.operation() as u8,
        0,
        number,
        encoder,
        data,
    )
}

/// The frame of a refusal; `operation` is the code that was asked for, known or not.
pub fn encode_refusal(number: u64, operation: u8, refusal: &Refusal) -> Frame {
    let mut encoder = Encoder::default();
    refusal.encode(&mut encoder);
    let status = refusal.code() as u8;
    frame(FrameKind::Reply, operation, status, number, encoder, Bytes::new())
}

fn frame(kind: FrameKind, operation: u8, status: u8, request: u64, body: Encoder, data: Bytes) -> Frame {
    Frame {
        header: FrameHeader {
            version: PROTOCOL_VERSION,
            kind,
            operation,
            status,
            request,
        },
        body: body.finish(),
        data,
    }
}

/// The request in a frame, or why it is refused. A version other than ours is refused unless it is a hello, whose fields
/// never change.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::UnknownOperation`], [`Refusal::Version`].
pub fn decode_request(frame: &Frame) -> Result<Request, Refusal> {
    let header = &frame.header;
    let operation =
        Operation::from_code(header.operation).ok_or(Refusal::UnknownOperation(header.operation))?;
    if header.version != PROTOCOL_VERSION && operation != Operation::Hello {
        return Err(Refusal::Version {
            lowest: PROTOCOL_VERSION,
            highest: PROTOCOL_VERSION,
        });
    }
    if header.kind != FrameKind::Request || header.status != 0 {
        return Err(Refusal::Malformed("a reply where a request was expected".into()));
    }
    Request::decode(operation, frame.body.clone(), frame.data.clone())
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
    if header.version != PROTOCOL_VERSION {
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
    Reply::decode(operation, frame.body.clone(), frame.data.clone()).map(Ok)
}
