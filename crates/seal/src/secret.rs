//! 32 secret bytes: wiped when dropped, and on the heap, so that moving the value leaves no copy behind.

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// What every key here is made of. It has no `Debug`, so that a type which holds one must say how it prints.
#[derive(Clone)]
pub(crate) struct Secret(Box<[u8; 32]>);

impl Secret {
    /// Lets `fill` write the secret where it will stay.
    pub(crate) fn filled(fill: impl FnOnce(&mut [u8; 32])) -> Self {
        let mut secret = Self(Box::new([0; 32]));
        fill(&mut secret.0);
        secret
    }

    /// Takes a secret and wipes the argument's own copy; the caller's is the caller's to wipe.
    pub(crate) fn new(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self::filled(|secret| secret.copy_from_slice(&*bytes))
    }

    pub(crate) fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Zeroize for Secret {
    fn zeroize(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for Secret {}
