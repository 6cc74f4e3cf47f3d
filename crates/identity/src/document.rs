//! Documents that an installation signs for those who joined it, with the key of its certificate authority: whoever joined got the
//! authority's certificate then, so a document can be checked years later, without asking anybody, from a file.
//!
//! What the authority signs otherwise is DER, which begins with a byte that no document has; documents are told from each other by
//! their kind, which is part of what is signed.

use crate::{
    CertificateAuthority, JwkSet, VerifyingKey,
    jws::{self, JwsError},
};
use rustls::pki_types::CertificateDer;

/// What an EC key of P-256 has before its point, within a SubjectPublicKeyInfo (RFC 5480): the algorithm, the curve, a string of 66 bytes
/// without unused bits.
const P256_KEY_INFO: [u8; 24] = [
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Why a document was refused before its content was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// No signed text of the kind that was asked for, or too long.
    #[error("it is no signed document of the kind expected here")]
    Malformed,
    /// Another authority's.
    #[error("another authority signed it")]
    OtherAuthority,
    /// Altered, or forged.
    #[error("its signature is wrong")]
    BadSignature,
    /// The authority's certificate is none, or its key is of a kind that we do not make.
    #[error("the authority's certificate is none of Firn's")]
    NotAnAuthority,
}

impl CertificateAuthority {
    /// Signs `payload` as a document of this kind.
    pub fn sign_document(&self, kind: &str, payload: &[u8]) -> String {
        jws::sign(self.signing_key(), kind, payload)
    }
}

/// Checks documents of one authority.
#[derive(Clone, Debug)]
pub struct DocumentVerifier(JwkSet);

impl DocumentVerifier {
    /// Of the authority with this certificate, which must come from where it is trusted.
    ///
    /// # Errors
    /// [`DocumentError::NotAnAuthority`].
    pub fn of_authority(certificate: &CertificateDer<'_>) -> Result<Self, DocumentError> {
        let anchor =
            webpki::anchor_from_trusted_cert(certificate).map_err(|_| DocumentError::NotAnAuthority)?;
        let key = anchor.subject_public_key_info.as_ref();
        let key = key
            .strip_prefix(&P256_KEY_INFO)
            .and_then(VerifyingKey::from_bytes)
            .ok_or(DocumentError::NotAnAuthority)?;
        Ok(Self(JwkSet::new([key])))
    }

    /// The payload of a document of this kind, whose text has at most `limit_bytes`.
    ///
    /// # Errors
    /// [`DocumentError`].
    pub fn open(&self, kind: &str, text: &str, limit_bytes: usize) -> Result<Vec<u8>, DocumentError> {
        jws::open(text, kind, &self.0, limit_bytes).map_err(|error| match error {
            JwsError::Malformed => DocumentError::Malformed,
            JwsError::UnknownKey => DocumentError::OtherAuthority,
            JwsError::BadSignature => DocumentError::BadSignature,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SigningKey, UnixTime, certificate_request};

    const KIND: &str = "a test's";

    fn authority(seed: u8) -> CertificateAuthority {
        CertificateAuthority::from_seed([seed; 32], "firn.example", UnixTime(1_767_225_600))
            .expect("an authority")
    }

    #[test]
    fn a_document_is_opened_with_the_certificate_of_the_authority_that_signed_it() {
        let (ours, other) = (authority(1), authority(2));
        let verifier = DocumentVerifier::of_authority(ours.certificate()).expect("a verifier");
        let text = ours.sign_document(KIND, b"payload");
        let open = |text: &str| verifier.open(KIND, text, 1 << 10);
        assert_eq!(open(&text), Ok(b"payload".to_vec()));
        let foreign = other.sign_document(KIND, b"payload");
        assert_eq!(open(&foreign), Err(DocumentError::OtherAuthority));
        // The other's signature under our key's name.
        let signature = foreign.rsplit_once('.').expect("three parts").1;
        let forged = format!("{}.{signature}", text.rsplit_once('.').expect("three parts").0);
        assert_eq!(open(&forged), Err(DocumentError::BadSignature));
        assert_eq!(
            verifier.open("another kind", &text, 1 << 10),
            Err(DocumentError::Malformed)
        );
        assert_eq!(
            verifier.open(KIND, &text, text.len() - 1),
            Err(DocumentError::Malformed)
        );
        for cut in 0..text.len() {
            assert!(open(&text[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn what_is_no_authoritys_certificate_verifies_nothing() {
        let ours = authority(1);
        let name = crate::PeerIdentity {
            trust_domain: "firn.example".into(),
            kind: crate::PeerKind::Service("x".into()),
        };
        let request = certificate_request(&SigningKey::from_seed([3; 32]), &name);
        let holder = ours
            .issue(&request, &name, &[], UnixTime(1_800_000_000), &mut |bytes| {
                bytes.fill(4)
            })
            .expect("a certificate");
        // A holder's certificate has a key of its own: what the authority signed is not of it.
        let of_holder = DocumentVerifier::of_authority(&holder.certificate).expect("a key");
        let text = ours.sign_document(KIND, b"payload");
        assert_eq!(
            of_holder.open(KIND, &text, 1 << 10),
            Err(DocumentError::OtherAuthority)
        );
        for none in [&b""[..], b"no certificate", &ours.certificate()[..40]] {
            let none = CertificateDer::from(none.to_vec());
            assert!(DocumentVerifier::of_authority(&none).is_err());
        }
    }
}
