//! Requests of our own beside `object_store`'s: their shared error.

/// A failure as `object_store` would tell it, so that it is sorted as its own are.
pub(crate) fn generic(
    store: &'static str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> object_store::Error {
    object_store::Error::Generic {
        store,
        source: Box::new(error),
    }
}
