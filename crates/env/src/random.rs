//! Randomness.

/// A source of random bytes.
pub trait Random: Send + Sync {
    /// Fills `bytes`. The real source is the operating system's and fit for keys; the simulated one repeats by seed.
    fn fill(&self, bytes: &mut [u8]);
}
