//! Copies of signed reports in the bucket, beside the ownership statements that name their keys.
//!
//! ```text
//! <family>/audits/<volume>/<2^64 - 1 - sequence>      the newest comes first in a listing; created only if absent, never changed
//! ```
//!
//! The chain of a volume goes over all edges that owned it, so where it ends is asked here: of the newest names, the first that holds a
//! report of that number, of that volume, signed by a key that an ownership statement names. What is none is passed over, since whoever
//! can put objects must not keep reports from being made. An edge has no right to delete, so nothing here is ever deleted.

use firn_audit_report::{MAX_REPORT_BYTES, Report, SignedReport};
use firn_format::{FamilyId, OwnershipEpoch, VolumeId};
use firn_seal::{Keys, RootPublic};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use firn_volume::{AnnouncedKey, announced_key};
use futures::{StreamExt, stream};
use std::{collections::BTreeMap, sync::Arc};

/// Names that are looked at to find the newest report.
const LOOKED: usize = 8;
/// Reports read at a time.
const READ_TOGETHER: usize = 16;

/// Whose key signed a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// An ownership statement names it: it is that of the edge of this name.
    Owners(String),
    /// No ownership statement names it: somebody else made the report.
    Strangers,
    /// Nobody can tell any more: the statement is sealed under a key that was dropped.
    Forgotten,
    /// The bucket was not asked.
    NotChecked,
}

/// What the bucket has of a volume's reports.
pub struct Listed {
    /// By number; the inner error says why what is there is no report of that number.
    pub reports: BTreeMap<u64, Result<SignedReport, String>>,
    /// Whether these are all; otherwise the newest.
    pub are_all: bool,
}

/// See the module.
pub struct ReportBucket {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    pub volume: VolumeId,
}

impl ReportBucket {
    fn prefix(&self) -> String {
        format!("{}/audits/{}/", self.keys.family(), self.volume.hex())
    }

    fn key(&self, sequence: u64) -> ObjectKey {
        ObjectKey::new(&format!("{}{:016x}", self.prefix(), u64::MAX - sequence))
    }

    /// The number that a name tells; `None`: no report's name.
    fn sequence_of(key: &ObjectKey) -> Option<u64> {
        let (_, digits) = key.as_str().rsplit_once('/')?;
        let inverted = u64::from_str_radix(digits, 16).ok()?;
        (digits.len() == 16).then_some(u64::MAX - inverted)
    }

    /// The newest report of the volume's.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn newest(&self) -> Result<Option<SignedReport>, StoreError> {
        let page = self.store.list(&self.prefix(), None).await?;
        for object in page.objects.iter().take(LOOKED) {
            let Some(sequence) = Self::sequence_of(&object.key) else {
                continue;
            };
            let Some(Ok(report)) = self.read(sequence).await? else {
                continue;
            };
            match self.whose_key(report.report()).await? {
                Key::Owners(_) | Key::Forgotten => return Ok(Some(report)),
                Key::Strangers | Key::NotChecked => {}
            }
        }
        Ok(None)
    }

    /// The newest thousand or so, which come on one page.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn list(&self) -> Result<Listed, StoreError> {
        let page = self.store.list(&self.prefix(), None).await?;
        let sequences = page
            .objects
            .iter()
            .filter_map(|object| Self::sequence_of(&object.key));
        let read = sequences.map(|sequence| async move { (sequence, self.read(sequence).await) });
        let read: Vec<_> = stream::iter(read).buffered(READ_TOGETHER).collect().await;
        let mut reports = BTreeMap::new();
        for (sequence, report) in read {
            if let Some(report) = report? {
                reports.insert(sequence, report);
            }
        }
        Ok(Listed {
            reports,
            are_all: !page.more,
        })
    }

    /// One; `None`: it is not there.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn read(&self, sequence: u64) -> Result<Option<Result<SignedReport, String>>, StoreError> {
        let longest = MAX_REPORT_BYTES as u64 + 1;
        let bytes = match self.store.get_range(&self.key(sequence), 0, longest).await {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(open(&bytes, sequence, self.keys.family(), self.volume)))
    }

    /// Puts one under its number, durably; whether that was free or held the same.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn put(&self, report: &SignedReport) -> Result<bool, StoreError> {
        let sequence = report.report().sequence;
        let text = report.text().to_owned().into();
        match self
            .store
            .put(&self.key(sequence), vec![text], PutMode::Create)
            .await
        {
            Ok(()) => Ok(true),
            Err(StoreError::AlreadyExists { .. }) => {
                Ok(self.read(sequence).await?.and_then(Result::ok).as_ref() == Some(report))
            }
            Err(error) => Err(error),
        }
    }

    /// Whose key a report was signed with.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn whose_key(&self, report: &Report) -> Result<Key, StoreError> {
        let signer = &report.signer;
        let of = (OwnershipEpoch(signer.epoch), signer.grant);
        Ok(
            match announced_key(&*self.store, &self.keys, self.volume, of).await? {
                AnnouncedKey::Named { key, owner }
                    if key == RootPublic::from_bytes(signer.key) && owner.id.0 == signer.owner =>
                {
                    Key::Owners(owner.name)
                }
                AnnouncedKey::Named { .. } | AnnouncedKey::NotThere => Key::Strangers,
                AnnouncedKey::KeyDropped => Key::Forgotten,
            },
        )
    }
}

/// A report that must be of this number and volume.
pub fn open(bytes: &[u8], sequence: u64, family: FamilyId, volume: VolumeId) -> Result<SignedReport, String> {
    let signed = SignedReport::open(bytes).map_err(|error| error.to_string())?;
    let report = signed.report();
    if report.sequence != sequence {
        return Err(format!("it is report {} under another's name", report.sequence));
    }
    if (report.volume.family, report.volume.id) != (family.0, volume) {
        return Err(format!("it is of another volume: {}", report.volume.id));
    }
    Ok(signed)
}
