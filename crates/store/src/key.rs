//! Names of objects.

use std::{fmt, sync::Arc};

/// An object's name within the bucket (and prefix) the store was opened on: `/`-separated, `[A-Za-z0-9._/-]`, at most 512 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Makes a key.
    ///
    /// # Panics
    /// If the name has characters outside the set above, an empty or dotted component, or is too long: keys are made by
    /// Firn's own code from numbers and hex, never from user input.
    pub fn new(name: &str) -> Self {
        assert!(Self::is_valid(name), "{name:?} is no object key");
        Self(name.into())
    }

    /// Whether `name` can be a key; for names that come from a listing.
    pub fn is_valid(name: &str) -> bool {
        name.len() <= 512
            && name
                .split('/')
                .all(|part| !part.is_empty() && part != "." && part != "..")
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'/' | b'-'))
    }

    /// A listing's prefix in a key's place, for errors about that listing; it need not be a valid key.
    pub fn of_prefix(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// Whether some key may start with `prefix`; no listing of any other finds anything.
    pub fn may_start_with(prefix: &str) -> bool {
        // An unfinished component can become a valid one, an empty or dotted one before a slash cannot.
        let (finished, last) = prefix
            .rsplit_once('/')
            .map_or((None, prefix), |(finished, last)| (Some(finished), last));
        finished.is_none_or(Self::is_valid) && (last.is_empty() || Self::is_valid(&format!("{last}x")))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &self.0)
    }
}
