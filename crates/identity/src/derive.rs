//! HKDF-SHA256 with a label for each purpose.

use crate::secret::Secret;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Derives `N` bytes from `secret` for what `salt` and `info` name.
pub(crate) fn derive<const N: usize>(secret: &[u8; 32], salt: &str, info: &[&[u8]]) -> Secret<N> {
    Secret::filled(|derived| {
        Salt::new(HKDF_SHA256, salt.as_bytes())
            .extract(secret)
            .expand(info, Length(N))
            .and_then(|okm| okm.fill(derived))
            .expect("a few dozen bytes are within what HKDF-SHA256 can give");
    })
}
