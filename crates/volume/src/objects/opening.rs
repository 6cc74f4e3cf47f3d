//! Opening: from sealed bytes, wherever they come from, to the object that a pointer names.

use super::{
    Inner, Object,
    known::KnownObjects,
    object::{Misfit, open_known, open_object, trusting},
};
use bytes::Bytes;
use firn_format::{Place, Pointer, decode_object};
use std::sync::Arc;

/// Larger objects are verified and opened where they hold nobody up; smaller ones take less than the trip there.
const OPEN_INLINE_BYTES: u32 = 128 << 10;

impl Inner {
    /// Opens what the disk cache has, and tells it whether that was the object.
    pub(super) async fn open_cached(
        &self,
        bytes: Bytes,
        pointer: &Pointer,
        place: Place,
    ) -> Option<Arc<Object>> {
        let location = pointer.location;
        let opened = if firn_env::planted!("volume.trust_the_disk_cache") {
            trusting(&self.opener, bytes)
        } else {
            self.open_noting(bytes, pointer, place).await
        };
        match opened {
            Ok(object) => {
                self.disk.confirm(&location);
                Some(object)
            }
            // The bytes are right: nothing is gained by fetching them again.
            Err(Misfit::NoKey { .. }) => None,
            Err(Misfit::Damaged(_) | Misfit::Unusable(_)) => {
                if self.disk.reject(&location) {
                    tracing::warn!(%place, segment = %location.segment, "damaged bytes in the disk cache; fetched anew");
                    self.lock().counters.cache_damages += 1;
                }
                None
            }
        }
    }

    /// Opens what the disk cache has by the tag that it is known by, or verifies it by its uid and knows it from then on.
    async fn open_noting(
        &self,
        bytes: Bytes,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Arc<Object>, Misfit> {
        let location = &pointer.location;
        if !KnownObjects::takes(location) {
            return self.open(bytes, pointer, place).await;
        }
        let fetched = decode_object(bytes.clone()).map_err(|error| Misfit::Damaged(error.to_string()))?;
        let Some(tag) = fetched.seal_tag() else {
            return self.open(bytes, pointer, place).await;
        };
        if !self.lock().known.has(location, &pointer.uid, &tag) {
            // Opened where it lies, if nobody else holds it.
            drop(fetched);
            let object = self.open(bytes, pointer, place).await?;
            self.lock().known.note(location, &pointer.uid, &tag);
            return Ok(object);
        }
        drop(bytes);
        let object = if location.length <= OPEN_INLINE_BYTES {
            open_known(&self.opener, fetched, tag, place)
        } else {
            let opener = self.opener.clone();
            self.env
                .compute(move || open_known(&opener, fetched, tag, place))
                .await
        };
        if object.is_ok() {
            self.lock().counters.known_hits += 1;
        }
        object
    }

    pub(super) async fn open(
        &self,
        bytes: Bytes,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Arc<Object>, Misfit> {
        if pointer.location.length <= OPEN_INLINE_BYTES {
            return open_object(&self.opener, bytes, &pointer.uid, Some(place));
        }
        let (opener, uid) = (self.opener.clone(), pointer.uid);
        self.env
            .compute(move || open_object(&opener, bytes, &uid, Some(place)))
            .await
    }
}
