//! Errors of an object store, sorted by what the caller can do about it.

use crate::ObjectKey;

/// A failed request, after whatever retries the layer does.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No such object (or it is not visible yet).
    #[error("object {key} does not exist")]
    NotFound {
        /// The object.
        key: ObjectKey,
    },
    /// A create-only put found the object there already.
    #[error("object {key} exists already")]
    AlreadyExists {
        /// The object.
        key: ObjectKey,
    },
    /// The store refused for now, or did not answer: the request may or may not have been done. Trying again is right.
    #[error("store is unavailable for {operation} {key}: {detail}")]
    Unavailable {
        /// What was tried.
        operation: &'static str,
        /// The object, or the prefix of a list.
        key: ObjectKey,
        /// The store's or the network's words.
        detail: String,
    },
    /// The credentials do not allow it. Trying again will not help until somebody changes them.
    #[error("store denies {operation} {key}: {detail}")]
    Denied {
        /// What was tried.
        operation: &'static str,
        /// The object, or the prefix of a list.
        key: ObjectKey,
        /// The store's words.
        detail: String,
    },
    /// The request or the configuration is wrong, and always will be.
    #[error("store rejects {operation} {key}: {detail}")]
    Invalid {
        /// What was tried.
        operation: &'static str,
        /// The object, or the prefix of a list.
        key: ObjectKey,
        /// The store's words.
        detail: String,
    },
}

impl StoreError {
    /// [`StoreError::Unavailable`].
    pub fn unavailable(operation: &'static str, key: &ObjectKey, detail: impl Into<String>) -> Self {
        Self::Unavailable {
            operation,
            key: key.clone(),
            detail: detail.into(),
        }
    }

    /// [`StoreError::Invalid`].
    pub fn invalid(operation: &'static str, key: &ObjectKey, detail: impl Into<String>) -> Self {
        Self::Invalid {
            operation,
            key: key.clone(),
            detail: detail.into(),
        }
    }

    /// [`StoreError::NotFound`].
    pub fn not_found(key: &ObjectKey) -> Self {
        Self::NotFound { key: key.clone() }
    }

    /// [`StoreError::AlreadyExists`].
    pub fn already_exists(key: &ObjectKey) -> Self {
        Self::AlreadyExists { key: key.clone() }
    }

    /// Whether the same request may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}
