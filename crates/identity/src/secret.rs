//! Secret bytes: wiped when dropped, on the heap so that a move leaves no copy, compared in constant time, never printed.

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A source of fresh entropy, such as the environment's randomness: fills the whole slice.
pub type Entropy<'a> = &'a mut dyn FnMut(&mut [u8]);

/// `N` secret bytes. It has no `Debug`, so that a type which holds one must say how it prints.
#[derive(Clone)]
pub(crate) struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    /// Lets `fill` write the secret where it will stay.
    pub(crate) fn filled(fill: impl FnOnce(&mut [u8; N])) -> Self {
        let mut secret = Self(Box::new([0; N]));
        fill(&mut secret.0);
        secret
    }

    /// Takes a secret and wipes the argument's own copy; the caller's is the caller's to wipe.
    pub(crate) fn new(bytes: [u8; N]) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self::filled(|secret| secret.copy_from_slice(&*bytes))
    }

    pub(crate) fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Zeroize for Secret<N> {
    fn zeroize(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl<const N: usize> ZeroizeOnDrop for Secret<N> {}

/// Whether two byte strings are equal, in a time that tells only their lengths.
pub fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}
