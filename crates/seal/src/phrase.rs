//! The recovery phrase: 24 words from which everything else can be had back.
//!
//! The words are BIP-39 English: 32 bytes of entropy and a checksum, so a slip of the pen is noticed. From the entropy
//! HKDF-SHA256 derives the tenant's signing key and the recovery recipient, under labels of their own. There is no
//! password stretching, since there is nothing to guess: the entropy has 256 bits.

use crate::{RecipientSecret, TenantSigningKey, secret::Secret};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use bip39::{Language, Mnemonic};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Words of a phrase.
const WORDS: usize = 24;

/// Why a text is no recovery phrase. No message repeats a word of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PhraseError {
    /// Not 24 words.
    #[error("a recovery phrase has 24 words, this has {found}")]
    WrongLength {
        /// How many there are.
        found: usize,
    },
    /// A word that is in no phrase.
    #[error("word {position} is not in the word list; check its spelling")]
    UnknownWord {
        /// Which, counting from 1.
        position: usize,
    },
    /// Words in the list, but not these together.
    #[error("the words do not fit together; one is wrong, or two are swapped")]
    BadChecksum,
}

/// A recovery phrase. Wiped when dropped, never printed unless asked for.
#[derive(Clone)]
pub struct RecoveryPhrase(Secret);

impl RecoveryPhrase {
    /// Makes a phrase of 32 bytes of fresh entropy.
    pub fn from_entropy(entropy: [u8; 32]) -> Self {
        Self(Secret::new(entropy))
    }

    /// Reads a phrase as a person types it: any case, any white space.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, PhraseError> {
        let found = text.split_whitespace().count();
        if found != WORDS {
            return Err(PhraseError::WrongLength { found });
        }
        let text = Zeroizing::new(text.to_ascii_lowercase());
        let mnemonic =
            Mnemonic::parse_in_normalized(Language::English, &text).map_err(|error| match error {
                bip39::Error::UnknownWord(index) => PhraseError::UnknownWord { position: index + 1 },
                bip39::Error::BadWordCount(found) | bip39::Error::BadEntropyBitCount(found) => {
                    PhraseError::WrongLength { found }
                }
                bip39::Error::InvalidChecksum | bip39::Error::AmbiguousLanguages(_) => {
                    PhraseError::BadChecksum
                }
            })?;
        let (mut bytes, length) = mnemonic.to_entropy_array();
        assert_eq!(length, 32, "24 words are 32 bytes");
        let entropy = Secret::filled(|entropy| entropy.copy_from_slice(&bytes[..32]));
        bytes.zeroize();
        Ok(Self(entropy))
    }

    /// The words, to be shown once to the person who writes them down.
    pub fn expose_words(&self) -> Zeroizing<String> {
        let mnemonic =
            Mnemonic::from_entropy_in(Language::English, self.0.expose()).expect("32 bytes make 24 words");
        let mut words = Zeroizing::new(String::with_capacity(WORDS * 9));
        for word in mnemonic.words() {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(word);
        }
        words
    }

    /// The key that vouches for all recipients.
    pub fn signing_key(&self) -> TenantSigningKey {
        TenantSigningKey::from_seed(*self.derive("firn 1 tenant signing key"))
    }

    /// The recipient that opens every key ring when all edges are gone.
    pub fn recovery_secret(&self) -> RecipientSecret {
        RecipientSecret::derive(&self.derive("firn 1 recovery recipient"))
    }

    fn derive(&self, label: &str) -> Zeroizing<[u8; 32]> {
        let mut derived = Zeroizing::new([0; 32]);
        Salt::new(HKDF_SHA256, b"firn 1 recovery phrase")
            .extract(self.0.expose())
            .expand(&[label.as_bytes()], Length32)
            .and_then(|okm| okm.fill(&mut *derived))
            .expect("32 bytes are within what HKDF-SHA256 can give");
        derived
    }
}

struct Length32;

impl KeyType for Length32 {
    fn len(&self) -> usize {
        32
    }
}

impl ZeroizeOnDrop for RecoveryPhrase {}

impl fmt::Debug for RecoveryPhrase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecoveryPhrase(secret)")
    }
}
