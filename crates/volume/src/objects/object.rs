//! One object: sealed bytes that are verified and opened, and a load of it that several may wait for.

use super::ReadError;
use bytes::Bytes;
use firn_format::{
    FetchedObject, FormatError, KeyEpoch, ObjectHeader, Place, Pointer, SEAL_TAG_BYTES, Uid, decode_object,
};
use firn_seal::{ObjectOpener, OpenedObject, SealError};
use futures::{channel::oneshot, future::Shared};
use std::sync::Arc;

/// An object, verified and opened.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it says of itself, and its children.
    pub header: ObjectHeader,
    /// Its payload.
    pub payload: Bytes,
}

/// A load under way.
pub(super) type Loading = Shared<oneshot::Receiver<Result<Arc<Object>, ReadError>>>;

/// A uid is the right one for one place only.
pub(super) fn at_place(
    object: Arc<Object>,
    pointer: &Pointer,
    place: Place,
) -> Result<Arc<Object>, ReadError> {
    if object.header.place == place {
        return Ok(object);
    }
    Err(ReadError::Corrupt {
        place,
        location: pointer.location,
        detail: format!("the object belongs at {}", object.header.place),
    })
}

/// Waits for a load that is under way.
pub(super) async fn loaded(
    loading: Loading,
    pointer: &Pointer,
    place: Place,
) -> Result<Arc<Object>, ReadError> {
    match loading.await {
        Ok(Ok(object)) => at_place(object, pointer, place),
        Ok(Err(error)) => Err(error),
        Err(oneshot::Canceled) => Err(ReadError::Unavailable {
            segment: pointer.location.segment,
            detail: "the load was ended".into(),
        }),
    }
}

/// What is wrong with bytes that were to be an object.
pub(super) enum Misfit {
    /// They are not the object: others may be.
    Damaged(String),
    /// They are the object, and it cannot be used: no other bytes will do.
    Unusable(String),
    /// They are the object, and it is sealed under a key that is not at hand.
    NoKey { epoch: KeyEpoch, newest: KeyEpoch },
}

pub(super) fn open_object(
    opener: &ObjectOpener,
    bytes: Bytes,
    uid: &Uid,
    place: Option<Place>,
) -> Result<Arc<Object>, Misfit> {
    let verified = decode_object(bytes)
        .and_then(|fetched| fetched.verify(uid, place))
        .map_err(|error| match error {
            FormatError::WrongPlace { .. } => Misfit::Unusable(error.to_string()),
            other => Misfit::Damaged(other.to_string()),
        })?;
    opened(opener.open(verified).map_err(|error| match error {
        SealError::UnknownKeyEpoch { epoch, newest } => Misfit::NoKey { epoch, newest },
        other => Misfit::Unusable(other.to_string()),
    }))
}

/// Opens one that is known by its tag ([`super::known`]).
pub(super) fn open_known(
    opener: &ObjectOpener,
    fetched: FetchedObject,
    tag: [u8; SEAL_TAG_BYTES],
    place: Place,
) -> Result<Arc<Object>, Misfit> {
    if fetched.unverified_header().place != place {
        return Err(Misfit::Damaged("the object of another place has its tag".into()));
    }
    // It was opened before, or sealed here: if it does not open, it is not the bytes that it was.
    opened(opener.open_tagged(fetched, tag).map_err(|error| match error {
        SealError::UnknownKeyEpoch { epoch, newest } => Misfit::NoKey { epoch, newest },
        other => Misfit::Damaged(other.to_string()),
    }))
}

fn opened(opened: Result<OpenedObject, Misfit>) -> Result<Arc<Object>, Misfit> {
    opened.map(|opened| {
        Arc::new(Object {
            header: opened.header,
            payload: opened.payload,
        })
    })
}

/// What a build without verification would do (a planted bug).
pub(super) fn trusting(opener: &ObjectOpener, bytes: Bytes) -> Result<Arc<Object>, Misfit> {
    let uid = decode_object(bytes.clone())
        .map_err(|error| Misfit::Damaged(error.to_string()))?
        .uid();
    open_object(opener, bytes, &uid, None)
}
