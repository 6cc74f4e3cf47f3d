//! AES-256-XTS (IEEE 1619): sealing where there is no room for anything but the data.
//!
//! A block in place must stay as long as it was, so nothing can be added that would show a forgery. XTS makes the content
//! unreadable, and different at every block number; whoever can write to a node can still put an older content back, or
//! garble 16 bytes into noise. The threat model says so; the mode `log` has room for more.

use aes::{
    Aes256,
    cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16},
};

/// Bytes of the cipher's block. Data units are multiples of it, so no ciphertext stealing is needed.
const CIPHER_BYTES: usize = 16;
/// Given to the cipher at once: a data unit of 4 KiB. The processor encrypts up to 64 side by side, and each call spreads the
/// round keys over its registers first.
const GROUP_BLOCKS: usize = 256;

/// Both keys of XTS.
pub(crate) struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    pub(crate) fn new(data: &[u8; 32], tweak: &[u8; 32]) -> Self {
        Self {
            data: Aes256::new(&Array::from(*data)),
            tweak: Aes256::new(&Array::from(*tweak)),
        }
    }

    /// Encrypts the data unit with this number.
    pub(crate) fn encrypt(&self, number: u64, unit: &mut [u8]) {
        self.run(number, unit, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts it.
    pub(crate) fn decrypt(&self, number: u64, unit: &mut [u8]) {
        self.run(number, unit, |blocks| self.data.decrypt_blocks(blocks));
    }

    fn run(&self, number: u64, unit: &mut [u8], cipher: impl Fn(&mut [Array<u8, U16>])) {
        assert!(
            unit.len().is_multiple_of(CIPHER_BYTES),
            "a data unit is a multiple of {CIPHER_BYTES} bytes"
        );
        let mut first = Array::from(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        let mut tweaks = [0; GROUP_BLOCKS];
        let (blocks, _) = Array::<u8, U16>::slice_as_chunks_mut(unit);
        for group in blocks.chunks_mut(GROUP_BLOCKS) {
            for (block, own) in group.iter_mut().zip(&mut tweaks) {
                *own = tweak;
                mask(block, tweak);
                tweak = double(tweak);
            }
            cipher(group);
            for (block, own) in group.iter_mut().zip(&tweaks) {
                mask(block, *own);
            }
        }
    }
}

fn mask(block: &mut Array<u8, U16>, tweak: u128) {
    *block = Array::from((u128::from_le_bytes((*block).into()) ^ tweak).to_le_bytes());
}

/// Multiplies by x in the field of 2^128 elements.
fn double(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap();
        bytes.try_into().unwrap()
    }

    /// Vector 10 of the standard: 512 counting bytes as data unit 255.
    #[test]
    fn the_standards_vector_is_reproduced() {
        let xts = Xts::new(
            &hex("2718281828459045235360287471352662497757247093699959574966967627"),
            &hex("3141592653589793238462643383279502884197169399375105820974944592"),
        );
        let plain: Vec<u8> = (0..512).map(|byte| byte as u8).collect();
        let mut unit = plain.clone();
        xts.encrypt(255, &mut unit);
        let expected: [u8; 64] = hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b\
             5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd");
        assert_eq!(unit[..64], expected);
        xts.decrypt(255, &mut unit);
        assert_eq!(unit, plain);
    }

    /// Units of several groups, and of none that is whole, are what one cipher block after the other gives.
    #[test]
    fn a_unit_of_any_length_is_encrypted_block_by_block() {
        let (data, tweak) = ([7; 32], [9; 32]);
        let xts = Xts::new(&data, &tweak);
        for cipher_blocks in [1, 3, GROUP_BLOCKS, GROUP_BLOCKS + 1, 4 * GROUP_BLOCKS] {
            let plain: Vec<u8> = (0..cipher_blocks * CIPHER_BYTES)
                .map(|at| (at * 7 % 251) as u8)
                .collect();
            let mut first = Array::from(u128::from(5_u64).to_le_bytes());
            Aes256::new(&Array::from(tweak)).encrypt_block(&mut first);
            let mut own = u128::from_le_bytes(first.into());
            let mut expected = Vec::new();
            for chunk in plain.chunks_exact(CIPHER_BYTES) {
                let word = u128::from_le_bytes(chunk.try_into().unwrap()) ^ own;
                let mut block = Array::from(word.to_le_bytes());
                Aes256::new(&Array::from(data)).encrypt_block(&mut block);
                expected.extend((u128::from_le_bytes(block.into()) ^ own).to_le_bytes());
                own = double(own);
            }
            let mut unit = plain.clone();
            xts.encrypt(5, &mut unit);
            assert_eq!(unit, expected, "{cipher_blocks} blocks");
            xts.decrypt(5, &mut unit);
            assert_eq!(unit, plain, "{cipher_blocks} blocks");
        }
    }
}
