//! Hexadecimal text: written in lower case, read in either.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Reads exactly `N` bytes of hex digits, in either case: people type some of them.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_exact() {
        assert_eq!(unhex::<2>(&hex(&[0, 255])), Some([0, 255]));
        for wrong in ["", "0", "00f", "zz00", "+0ff"] {
            assert_eq!(unhex::<2>(wrong), None, "{wrong}");
        }
    }
}
