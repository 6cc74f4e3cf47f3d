//! Randomness of the operating system, for keys, secrets and idempotency keys.

use crate::{failure::Failure, hexadecimal::hex};

/// Fills `bytes` from the operating system.
pub fn entropy(bytes: &mut [u8]) -> Result<(), Failure> {
    getrandom::fill(bytes)
        .map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))
}

/// As the key crates take it. The system was asked once when the program began to need it; that it stops giving is no state
/// to go on in.
pub fn filled(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// `N` random bytes as hex digits.
pub fn random_hex<const N: usize>() -> Result<String, Failure> {
    let mut bytes = [0; N];
    entropy(&mut bytes)?;
    Ok(hex(&bytes))
}
