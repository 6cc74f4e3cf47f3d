//! AES-256-GCM by whichever of two libraries is the fast one on this processor.
//!
//! | the processor has | taken | why |
//! |---|---|---|
//! | AVX-512 | aws-lc | its code for that is the fastest there is |
//! | VAES, and no AVX-512 | ring | two blocks an instruction; aws-lc has no code for it and takes one |
//! | neither, or is no x86-64 under Linux | aws-lc | both are as fast |
//!
//! Both give the same bytes, and each opens what the other sealed: a volume does not know which of them was taken (decision 0236).

use aws_lc_rs::aead as aws_lc;
use firn_format::SEAL_TAG_BYTES;
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// Each time other; the caller sees to it.
pub(crate) type Nonce = [u8; aws_lc::NONCE_LEN];

/// The bytes were not sealed with this key, under this nonce, with this authenticated data.
pub(crate) struct NotAuthentic;

/// A key that is ready for use.
pub(crate) enum Aes256Gcm {
    AwsLc(aws_lc::LessSafeKey),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Ring(Box<ring::aead::LessSafeKey>),
}

impl Aes256Gcm {
    /// By the library that is the faster one here.
    pub(crate) fn new(key: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if is_faster_by_ring() {
            return Self::by_ring(key);
        }
        Self::by_aws_lc(key)
    }

    fn by_aws_lc(key: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let key = aws_lc::UnboundKey::new(&aws_lc::AES_256_GCM, &key[..]);
        Self::AwsLc(aws_lc::LessSafeKey::new(key.expect("of the right length")))
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn by_ring(key: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let key = ring::aead::UnboundKey::new(&ring::aead::AES_256_GCM, &key[..]);
        let key = key.expect("of the right length");
        Self::Ring(Box::new(ring::aead::LessSafeKey::new(key)))
    }

    /// Seals the first `head_bytes` of `buffer` in place, and `tail` from where it is into what follows them; the last bytes of
    /// `buffer` are room for the tag. The bytes are those of sealing head and tail as one.
    ///
    /// # Panics
    /// If `buffer` is not as long as head, tail and tag.
    pub(crate) fn seal_with_tail(
        &self,
        nonce: Nonce,
        authenticated: &[u8],
        buffer: &mut [u8],
        head_bytes: usize,
        tail: &[u8],
    ) {
        assert_eq!(
            buffer.len(),
            head_bytes + tail.len() + SEAL_TAG_BYTES,
            "room for all of it"
        );
        match self {
            Self::AwsLc(key) => {
                let (head, sealed_tail) = buffer.split_at_mut(head_bytes);
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let authenticated = aws_lc::Aad::from(authenticated);
                key.seal_in_place_scatter(nonce, authenticated, head, tail, sealed_tail)
                    .expect("lengths agree and are far below what AES-GCM can seal");
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Ring(key) => {
                let (content, tag) = buffer.split_at_mut(head_bytes + tail.len());
                content[head_bytes..].copy_from_slice(tail);
                let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
                let authenticated = ring::aead::Aad::from(authenticated);
                let sealed = key
                    .seal_in_place_separate_tag(nonce, authenticated, content)
                    .expect("far below what AES-GCM can seal");
                tag.copy_from_slice(sealed.as_ref());
            }
        }
    }

    /// Opens `sealed` into `opened`, which is exactly a tag shorter.
    pub(crate) fn open_into(
        &self,
        nonce: Nonce,
        authenticated: &[u8],
        sealed: &[u8],
        opened: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let (ciphertext, tag) = sealed.split_at(opened.len());
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let authenticated = aws_lc::Aad::from(authenticated);
                key.open_separate_gather(nonce, authenticated, ciphertext, tag, opened)
                    .map_err(|_| NotAuthentic)
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Ring(key) => {
                opened.copy_from_slice(ciphertext);
                let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
                let authenticated = ring::aead::Aad::from(authenticated);
                let tag = tag.try_into().map_err(|_| NotAuthentic)?;
                key.open_in_place_separate_tag(nonce, authenticated, tag, opened, 0..)
                    .map(drop)
                    .map_err(|_| NotAuthentic)
            }
        }
    }

    /// Opens in place; the payload is what precedes the tag.
    pub(crate) fn open_in_place(
        &self,
        nonce: Nonce,
        authenticated: &[u8],
        buffer: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place(nonce, aws_lc::Aad::from(authenticated), buffer);
                opened.map(drop).map_err(|_| NotAuthentic)
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Ring(key) => {
                let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place(nonce, ring::aead::Aad::from(authenticated), buffer);
                opened.map(drop).map_err(|_| NotAuthentic)
            }
        }
    }
}

impl fmt::Debug for Aes256Gcm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::AwsLc(_) => "Aes256Gcm(aws-lc)",
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Ring(_) => "Aes256Gcm(ring)",
        })
    }
}

/// Looked at once by the standard library, which remembers it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_faster_by_ring() -> bool {
    let two_blocks = is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2");
    two_blocks && !is_x86_feature_detected!("avx512f")
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;

    fn both() -> [Aes256Gcm; 2] {
        let key = Zeroizing::new([7; KEY_BYTES]);
        [Aes256Gcm::by_aws_lc(&key), Aes256Gcm::by_ring(&key)]
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    fn sealed(by: &Aes256Gcm, number: u8, content: &[u8], head_bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; content.len() + SEAL_TAG_BYTES];
        buffer[..head_bytes].copy_from_slice(&content[..head_bytes]);
        by.seal_with_tail(
            [number; 12],
            b"where it belongs",
            &mut buffer,
            head_bytes,
            &content[head_bytes..],
        );
        buffer
    }

    #[test]
    fn both_seal_to_the_same_bytes_and_open_what_the_other_sealed() {
        let [aws_lc, ring] = both();
        // Around the strides of both: 16 bytes a block, 96, 128 and 256 a step.
        let lengths = (0..600).chain([4096, 32 << 10, (32 << 10) + 77, 1 << 20]);
        for bytes in lengths {
            let content = content(bytes);
            for head_bytes in [0, bytes / 3, bytes] {
                let here = sealed(&aws_lc, bytes as u8, &content, head_bytes);
                let there = sealed(&ring, bytes as u8, &content, head_bytes);
                assert_eq!(here, there, "{bytes} bytes, {head_bytes} of them in place");
            }
            for by in both() {
                let mut sealed = sealed(&aws_lc, bytes as u8, &content, 0);
                let mut opened = vec![0; bytes];
                let nonce = [bytes as u8; 12];
                let is_open = by.open_into(nonce, b"where it belongs", &sealed, &mut opened);
                assert!(is_open.is_ok() && opened == content, "{bytes} bytes by {by:?}");
                let is_open = by.open_in_place(nonce, b"where it belongs", &mut sealed);
                assert!(
                    is_open.is_ok() && sealed[..bytes] == content,
                    "{bytes} bytes by {by:?}"
                );
            }
        }
    }

    #[test]
    fn both_refuse_what_was_altered_or_belongs_elsewhere() {
        for by in both() {
            for bytes in [0, 1, 15, 16, 100, 300, 5000] {
                let right = sealed(&by, 1, &content(bytes), 0);
                for at in [0, bytes / 2, bytes, bytes + SEAL_TAG_BYTES - 1] {
                    let mut altered = right.clone();
                    altered[at] ^= 1;
                    let mut opened = vec![0; bytes];
                    assert!(
                        by.open_into([1; 12], b"where it belongs", &altered, &mut opened)
                            .is_err()
                    );
                    assert!(
                        by.open_in_place([1; 12], b"where it belongs", &mut altered)
                            .is_err()
                    );
                }
                let mut opened = vec![0; bytes];
                assert!(
                    by.open_into([2; 12], b"where it belongs", &right, &mut opened)
                        .is_err()
                );
                assert!(by.open_into([1; 12], b"elsewhere", &right, &mut opened).is_err());
                assert!(
                    by.open_in_place([1; 12], b"elsewhere", &mut right.clone())
                        .is_err()
                );
            }
        }
    }

    #[test]
    fn what_is_shorter_than_a_tag_is_refused() {
        for by in both() {
            for bytes in 0..SEAL_TAG_BYTES {
                assert!(by.open_in_place([1; 12], b"", &mut vec![0; bytes]).is_err());
            }
        }
    }
}
