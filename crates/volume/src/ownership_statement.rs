//! Ownership statements: what an edge puts into the bucket when it gets a volume, before it commits a root under that ownership.
//!
//! The table alone says who owns a volume, and it can be rolled back. So every giving of ownership leaves a small object in the
//! bucket, create-only and sealed under the family's key: the epoch and grant it had from the table, the root it went out from, the
//! writer incarnation whose segments hold its checkpoints, and the public key with which it signs its roots. A table that shows
//! less than the newest statement was rolled back ([`crate::freshness`]).
//!
//! ```text
//! <family>/owner/<volume>/<2^64 - 1 - epoch>-<grant>       the newest epoch comes first in a listing
//!
//! object    0  magic "FIRNOWNR"
//!           8  version u8 = 1 | reserved u8 | features u16
//!          12  key_epoch u32
//!          16  volume [16]
//!          32  epoch u64
//!          40  writer u64                       0: this ownership commits nothing
//!          48  salt [32]
//!          80  sealed payload                   purpose "firn 1 ownership statement", slot 0; name: volume, writer, epoch
//!
//! payload   version u8 = 1 | kind u8 | grant [16] | owner [16] | signer [32] | made_at_ms i64 | abandoned u64
//!         | base? = u8 0, or u8 1, version u64, epoch u64, uid [32] | length u32, owner's name
//! ```
//!
//! One PUT and about 300 bytes for each start; they are never deleted.

use crate::{
    codec::{DecodeError, Decoder, Encoder},
    error::VolumeError,
    objects::ReadError,
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_anchor::{Owner, OwnerId, Root};
use firn_env::Env;
use firn_format::{FamilyId, KeyEpoch, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_seal::{Keys, RecordContext, RecordOpener, RecordSealer, RootPublic, RootSigningKey, SealError};
use firn_store::{ObjectKey, PutMode, Store, StoreError};

const MAGIC: &[u8; 8] = b"FIRNOWNR";
const OBJECT_VERSION: u8 = 1;
pub(crate) const PAYLOAD_VERSION: u8 = 1;
const HEADER_BYTES: usize = 80;
const PURPOSE: &str = "firn 1 ownership statement";
const NAME: &str = "ownership statement";
/// An owner's name has 255 bytes at most, everything else is fixed. Nothing longer is fetched.
pub(crate) const MAX_STATEMENT_BYTES: u64 = 1024;

/// How the ownership came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StatementKind {
    /// A start, or the first root of a branch.
    Started = 1,
    /// A takeover that serves nothing yet.
    TakenOver = 2,
    /// The volume was entered in a table again from the bucket.
    Recovered = 3,
    /// An administrator goes on from a table that was rolled back.
    Accepted = 4,
}

/// What identifies the root that an ownership went out from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseRoot {
    pub version: Version,
    pub epoch: OwnershipEpoch,
    pub uid: Uid,
}

impl From<&Root> for BaseRoot {
    fn from(root: &Root) -> Self {
        Self {
            version: root.version,
            epoch: root.epoch,
            uid: root.uid,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnershipStatement {
    pub kind: StatementKind,
    pub volume: VolumeId,
    pub epoch: OwnershipEpoch,
    pub grant: [u8; 16],
    pub owner: Owner,
    /// Whose segments hold the checkpoints of this ownership; writer 0, which is given to nobody: it commits nothing.
    pub writer: WriterId,
    pub signer: RootPublic,
    /// `None`: there was no root.
    pub base: Option<BaseRoot>,
    /// The newest version that was given up with this statement; 0 if none was.
    pub abandoned: Version,
    /// By the owner's clock, milliseconds since 1970.
    pub made_at_ms: i64,
}

impl OwnershipStatement {
    /// What the names of a volume's statements begin with.
    pub fn prefix(family: &FamilyId, volume: &VolumeId) -> String {
        format!("{family}/owner/{}/", volume.hex())
    }

    /// The name of this one.
    pub fn key(&self, family: &FamilyId) -> ObjectKey {
        Self::key_of(family, &self.volume, self.epoch, self.grant)
    }

    /// The name of the statement of one giving of ownership.
    pub fn key_of(family: &FamilyId, volume: &VolumeId, epoch: OwnershipEpoch, grant: [u8; 16]) -> ObjectKey {
        let prefix = Self::prefix(family, volume);
        let grant = u128::from_be_bytes(grant);
        ObjectKey::new(&format!("{prefix}{:016x}-{grant:032x}", u64::MAX - epoch.0))
    }

    /// The epoch that an object's name tells; `None`: it is no statement's name.
    pub fn epoch_of(key: &ObjectKey) -> Option<OwnershipEpoch> {
        let (_, name) = key.as_str().rsplit_once('/')?;
        let (inverted, _) = name.split_once('-')?;
        let inverted = u64::from_str_radix(inverted, 16).ok()?;
        Some(OwnershipEpoch(u64::MAX - inverted))
    }

    /// The sealed object.
    pub fn seal(&self, keys: &Keys, fresh_entropy: [u8; 32]) -> Bytes {
        let context = RecordContext::local(PURPOSE, self.volume, self.writer, self.epoch.0);
        let sealer = RecordSealer::new(keys, fresh_entropy, context);
        let mut payload = Encoder::new(PAYLOAD_VERSION);
        payload
            .u8(self.kind as u8)
            .raw(&self.grant)
            .raw(&self.owner.id.0)
            .raw(&self.signer.to_bytes())
            .i64(self.made_at_ms)
            .u64(self.abandoned.0)
            .option(self.base, |out, base| {
                out.u64(base.version.0).u64(base.epoch.0).raw(&base.uid.0);
            })
            .bytes(self.owner.name.as_bytes());
        let sealed = sealer
            .seal(0, &[payload.as_slice()])
            .expect("the first slot of a new sealer, and far below the largest record");
        let mut object = BytesMut::with_capacity(HEADER_BYTES + sealed.len());
        object.put_slice(MAGIC);
        object.put_u8(OBJECT_VERSION);
        object.put_u8(0);
        object.put_u16_le(0);
        object.put_u32_le(sealer.key_epoch().0);
        object.put_slice(&self.volume.0);
        object.put_u64_le(self.epoch.0);
        object.put_u64_le(self.writer.0);
        object.put_slice(&sealer.salt());
        object.put_slice(&sealed);
        object.freeze()
    }

    /// Opens an object; whatever is not exactly a statement of this family's is refused.
    ///
    /// # Errors
    /// Why it is none.
    pub fn open(object: &Bytes, keys: &Keys) -> Result<Self, NoStatement> {
        let no = |why: &'static str| NoStatement::Other(why.to_owned());
        if object.len() < HEADER_BYTES || object[..8] != MAGIC[..] {
            return Err(no("it has no header of one"));
        }
        if object[8] != OBJECT_VERSION || object[9..12] != [0; 3] {
            return Err(no("it was written by a newer version"));
        }
        let u64_at = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().expect("eight bytes"));
        let key_epoch = u32::from_le_bytes(object[12..16].try_into().expect("four bytes"));
        let volume = VolumeId(object[16..32].try_into().expect("sixteen bytes"));
        let (epoch, writer) = (OwnershipEpoch(u64_at(32)), WriterId(u64_at(40)));
        let salt = object[48..80].try_into().expect("thirty-two bytes");
        let context = RecordContext::local(PURPOSE, volume, writer, epoch.0);
        let opener = RecordOpener::new(keys, KeyEpoch(key_epoch), salt, context);
        let opened = opener.and_then(|opener| opener.open(0, object.slice(HEADER_BYTES..)));
        let payload = opened.map_err(|error| match error {
            SealError::UnknownKeyEpoch { epoch, newest } if epoch < newest => NoStatement::KeyDropped(epoch),
            other => NoStatement::Other(other.to_string()),
        })?;
        Self::decode(&payload, volume, epoch, writer).map_err(|error| NoStatement::Other(error.to_string()))
    }

    fn decode(
        payload: &Bytes,
        volume: VolumeId,
        epoch: OwnershipEpoch,
        writer: WriterId,
    ) -> Result<Self, DecodeError> {
        let mut input = Decoder::new(payload, PAYLOAD_VERSION, NAME)?;
        let kind = match input.u8()? {
            1 => StatementKind::Started,
            2 => StatementKind::TakenOver,
            3 => StatementKind::Recovered,
            4 => StatementKind::Accepted,
            _ => return Err(input.error()),
        };
        let grant = input.array()?;
        let id = OwnerId(input.array()?);
        let signer = RootPublic::from_bytes(input.array()?);
        let made_at_ms = input.i64()?;
        let abandoned = Version(input.u64()?);
        let base = input.option(|input| {
            Ok(BaseRoot {
                version: Version(input.u64()?),
                epoch: OwnershipEpoch(input.u64()?),
                uid: Uid(input.array()?),
            })
        })?;
        let name = input.bytes()?;
        let name = String::from_utf8(name.to_vec()).map_err(|_| input.error())?;
        input.finish()?;
        Ok(Self {
            kind,
            volume,
            epoch,
            grant,
            owner: Owner { id, name },
            writer,
            signer,
            base,
            abandoned,
            made_at_ms,
        })
    }

    /// Puts it into the bucket: durable (level 2) when it returns.
    ///
    /// # Errors
    /// If the store does not take it.
    pub async fn put(&self, env: &Env, store: &dyn Store, keys: &Keys) -> Result<(), VolumeError> {
        let object = self.seal(keys, env.random_bytes());
        match store
            .put(&self.key(&keys.family()), vec![object], PutMode::Create)
            .await
        {
            // A retry below found what its first try had put: nobody else has the grant.
            Ok(()) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }
}

/// Why an object is no ownership statement of the family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoStatement {
    /// It may have been one, under a key that the ring no longer has.
    #[error("sealed under the key of epoch {0}, which was dropped")]
    KeyDropped(KeyEpoch),
    /// It is none.
    #[error("no ownership statement: {0}")]
    Other(String),
}

/// A store that does not answer, as whoever starts a volume reports it.
pub(crate) fn unavailable(error: &StoreError) -> VolumeError {
    VolumeError::Read(ReadError::Unavailable {
        segment: SegmentId {
            writer: WriterId(0),
            sequence: 0,
        },
        detail: error.to_string(),
    })
}

/// Signs the roots of one ownership.
#[derive(Clone, Debug)]
pub(crate) struct RootSigner {
    key: RootSigningKey,
    family: FamilyId,
    volume: VolumeId,
    grant: [u8; 16],
}

impl RootSigner {
    /// Draws the key of an ownership.
    pub fn draw(env: &Env, family: FamilyId, volume: VolumeId, grant: [u8; 16]) -> Self {
        Self {
            key: RootSigningKey::from_seed(env.random_bytes()),
            family,
            volume,
            grant,
        }
    }

    /// What its statement names.
    pub fn public(&self) -> RootPublic {
        self.key.public()
    }

    /// The root, signed.
    pub fn sign(&self, mut root: Root) -> Root {
        let message = root.signed_message(&self.family, &self.volume, &self.grant);
        root.signature = Some(self.key.sign(&message));
        root
    }

    /// Signs what is no root.
    pub fn sign_message(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message)
    }

    pub fn family(&self) -> FamilyId {
        self.family
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn grant(&self) -> [u8; 16] {
        self.grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_seal::EpochKey;
    use std::collections::BTreeMap;

    fn keys(byte: u8) -> Keys {
        Keys::new(
            FamilyId([1; 16]),
            BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([byte; 32]))]),
        )
    }

    fn statement() -> OwnershipStatement {
        OwnershipStatement {
            kind: StatementKind::Accepted,
            volume: VolumeId([2; 16]),
            epoch: OwnershipEpoch(3),
            grant: [4; 16],
            owner: Owner {
                id: OwnerId([5; 16]),
                name: "büro".into(),
            },
            writer: WriterId(6),
            signer: RootSigningKey::from_seed([7; 32]).public(),
            base: Some(BaseRoot {
                version: Version(8),
                epoch: OwnershipEpoch(2),
                uid: Uid([9; 32]),
            }),
            abandoned: Version(10),
            made_at_ms: -1,
        }
    }

    #[test]
    fn a_statement_is_read_back_and_its_bytes_are_these() {
        let (statement, keys) = (statement(), keys(3));
        let object = statement.seal(&keys, [11; 32]);
        assert_eq!(OwnershipStatement::open(&object, &keys), Ok(statement.clone()));
        assert!(object.len() as u64 <= MAX_STATEMENT_BYTES);
        assert_eq!(
            statement.key(&keys.family()).as_str(),
            format!(
                "{}/owner/{}/fffffffffffffffc-{}",
                "01".repeat(16),
                "02".repeat(16),
                "04".repeat(16)
            )
        );
        // A golden vector: what is in buckets must stay readable.
        let hash = blake3::hash(&object).to_hex();
        assert_eq!(hash.as_str(), GOLDEN, "the object is another one: {object:02x?}");
        let first = OwnershipStatement {
            base: None,
            ..statement
        };
        assert_eq!(
            OwnershipStatement::open(&first.seal(&keys, [11; 32]), &keys),
            Ok(first)
        );
    }

    /// Made by a program of another language from the layout above alone.
    const GOLDEN: &str = "86662c58889a63ccf517846909f25af44bbabd5f7ad08603af93bf918bb3cd96";

    #[test]
    fn nothing_altered_cut_or_sealed_by_others_is_a_statement() {
        let own = keys(3);
        let object = statement().seal(&own, [11; 32]);
        for at in 0..object.len() {
            let mut altered = object.to_vec();
            altered[at] ^= 1;
            assert!(
                OwnershipStatement::open(&altered.into(), &own).is_err(),
                "byte {at} was altered"
            );
            assert!(
                OwnershipStatement::open(&object.slice(..at), &own).is_err(),
                "cut to {at} bytes"
            );
        }
        assert!(OwnershipStatement::open(&object, &keys(4)).is_err());
    }
}
