//! The existence probe: whether an object lies at exactly one location, past all caches; for what somebody claims to have put there.

use super::{Misfit, Object, Objects, ReadError, at_place, read_error};
use firn_format::{
    ForwardingRecord, Kind, Location, MIN_OBJECT_BYTES, Place, Pointer, SegmentId, WriterId,
    authenticated_bytes, claimed_place,
};
use std::sync::Arc;

impl Objects {
    /// The object from the very place the pointer names, past all caches and without following where it may have been moved.
    ///
    /// # Errors
    /// As [`Objects::get`].
    pub async fn probe_object(&self, pointer: &Pointer, place: Place) -> Result<Arc<Object>, ReadError> {
        let location = pointer.location;
        let corrupt = |detail| ReadError::Corrupt {
            place,
            location,
            detail,
        };
        match self.inner.fetcher.fetch_uncached(&location).await {
            Ok(bytes) => match self.inner.open(bytes, pointer, place).await {
                Ok(object) => Ok(object),
                Err(Misfit::Damaged(detail) | Misfit::Unusable(detail)) => Err(corrupt(detail)),
                Err(Misfit::NoKey { epoch, newest }) => Err(ReadError::KeyNotAtHand { place, epoch, newest }),
            },
            Err(refusal) => Err(corrupt(read_error(refusal, &location, place)?)),
        }
    }

    /// The object and nothing beside it, wherever it is: for what is read once and has no neighbours that will be wanted.
    ///
    /// # Errors
    /// As [`Objects::get`].
    pub async fn get_alone(&self, pointer: &Pointer, place: Place) -> Result<Arc<Object>, ReadError> {
        if let Some(known) = self.known(pointer, place).await {
            return Ok(known);
        }
        match self.probe_object(pointer, place).await {
            Ok(object) => {
                self.insert(pointer, object.clone());
                Ok(object)
            }
            Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => Err(error),
            // It may have been moved on, or is right when it is asked for again.
            Err(ReadError::Corrupt { .. } | ReadError::Missing { .. }) => self.get(pointer, place).await,
        }
    }

    /// The object, if a cache has it: nothing is asked of the store.
    pub async fn known(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let cached = self.inner.lock().memory.get(pointer);
        match cached {
            Some(object) => at_place(object, pointer, place).ok(),
            None => self.inner.load_from_disk(pointer, place).await,
        }
    }

    /// Whether a block of this place begins at the very location the pointer names, and as `known` does if that is there; the
    /// rest of it is not read.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if something else begins there, or what [`Objects::probe_object`] says of a place that cannot be read.
    pub async fn check_beginning(
        &self,
        pointer: &Pointer,
        place: Place,
        known: Option<&Object>,
    ) -> Result<(), ReadError> {
        let location = pointer.location;
        let beginning = Location {
            length: location.length.min(MIN_OBJECT_BYTES as u32),
            ..location
        };
        let corrupt = |detail| ReadError::Corrupt {
            place,
            location,
            detail,
        };
        let bytes = match self.inner.fetcher.fetch_uncached(&beginning).await {
            Ok(bytes) => bytes,
            Err(refusal) => return Err(corrupt(read_error(refusal, &location, place)?)),
        };
        match claimed_place(&bytes) {
            Ok(found) if found == (Kind::Block, place) => {}
            Ok(_) => return Err(corrupt("an object of another place begins there".into())),
            Err(error) => return Err(corrupt(error.to_string())),
        }
        let Some(known) = known else { return Ok(()) };
        // Magic and length of the payload come before what the seal authenticates; of that, as much as was read.
        let expected = authenticated_bytes(&known.header);
        let found = bytes.get(8..).unwrap_or_default();
        let length = found.len().min(expected.len());
        if found[..length] == expected[..length] {
            Ok(())
        } else {
            Err(corrupt("another version begins there".into()))
        }
    }

    /// Where a mover says that it put what it found in a segment; `None` if it left no record that can be read.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`].
    pub async fn moved_by(
        &self,
        segment: SegmentId,
        mover: WriterId,
    ) -> Result<Option<ForwardingRecord>, ReadError> {
        let read = self.inner.fetcher.forwarding().record_of(segment, mover).await;
        read.map_err(|error| ReadError::Unavailable {
            segment,
            detail: error.to_string(),
        })
    }
}
