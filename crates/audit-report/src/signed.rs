//! A report with its signature: the text of a file.

use crate::{Report, VERSION, hex};
use firn_seal::RootPublic;
use serde::{Deserialize, Serialize};

/// What is signed begins with it; no root and no other message does.
const LABEL: &[u8] = b"firn 1 audit report\n";

/// Above what a report can come to: 85 texts of 500 bytes, each of which JSON may write as six.
pub const MAX_REPORT_BYTES: usize = 256 << 10;

/// Why a text is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// Not two lines of JSON, or not spelled as reports are.
    #[error("it is no report of an audit as Firn writes them: {0}")]
    Malformed(String),
    /// A form that this build does not know.
    #[error("it has version {0} of the form, and this build reads version {VERSION}: use a newer one")]
    NewerVersion(u32),
    /// Altered, or never signed by the key that it names.
    #[error(
        "its signature is wrong: it was altered after it was signed, or the key that it names did not sign it"
    )]
    BadSignature,
}

/// A report that the key which it names has signed. Whose key that is must be known from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedReport {
    report: Report,
    text: String,
    hash: [u8; 32],
}

/// Whatever a report of any version begins with.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    #[serde(with = "hex")]
    signature: [u8; 64],
}

impl SignedReport {
    /// Signs a report; `sign` has the secret of the key that the report names.
    ///
    /// # Errors
    /// If it signs with another.
    pub fn sign(report: &Report, sign: impl FnOnce(&[u8]) -> [u8; 64]) -> Result<Self, ReportError> {
        let line = encode(report);
        let signature = Signature {
            signature: sign(&message(&line)),
        };
        Self::open(format!("{line}\n{}\n", encode(&signature)).as_bytes())
    }

    /// Reads a file, and checks it against the key that it names.
    ///
    /// # Errors
    /// [`ReportError`]: whatever is not exactly what was written.
    pub fn open(text: &[u8]) -> Result<Self, ReportError> {
        let malformed = |why: &str| ReportError::Malformed(why.to_owned());
        if text.len() > MAX_REPORT_BYTES {
            return Err(malformed("it is too long"));
        }
        let text = str::from_utf8(text).map_err(|_| malformed("it is no text"))?;
        let lines = text.strip_suffix('\n').and_then(|lines| lines.split_once('\n'));
        let (line, signature) = lines.ok_or_else(|| malformed("it does not have two lines"))?;
        let json = |error: serde_json::Error| ReportError::Malformed(error.to_string());
        let Head { version } = serde_json::from_str(line).map_err(json)?;
        if version > VERSION {
            return Err(ReportError::NewerVersion(version));
        }
        let report: Report = serde_json::from_str(line).map_err(json)?;
        let signed: Signature = serde_json::from_str(signature).map_err(json)?;
        let is_ours = report.has_its_version() && encode(&report) == line && encode(&signed) == signature;
        if !is_ours {
            return Err(malformed("it is not spelled as one"));
        }
        let message = message(line);
        if !RootPublic::from_bytes(report.signer.key).verifies(&message, &signed.signature) {
            return Err(ReportError::BadSignature);
        }
        Ok(Self {
            report,
            text: text.to_owned(),
            hash: *blake3::hash(&message).as_bytes(),
        })
    }

    /// What it says.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Its file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the next report of the volume names.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Its place in the chain: what the next one follows.
    pub fn link(&self) -> (u64, Option<[u8; 32]>) {
        (self.report.sequence, Some(self.hash))
    }
}

fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("no map and no fraction: always JSON")
}

fn message(line: &str) -> Vec<u8> {
    [LABEL, line.as_bytes()].concat()
}
