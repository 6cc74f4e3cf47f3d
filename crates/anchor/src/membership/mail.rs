//! A member's mail: a count that others raise to have it look at the arenas, in an item of its own so that no want meets its heartbeats.
//!
//! ```text
//! mail = version u8 (1) | kind u8 ('B') | flags u8 (0) | change id [16] | bumps u64
//! ```

use super::{Membership, mail_sort};
use crate::{
    Anchor, AnchorCall, AnchorError, MemberCall, MemberNumber, TupleError, TupleVersion,
    anchor::decode,
    layout::{self, Writer},
    retry,
};
use bytes::Bytes;
use firn_format::VolumeId;

const LAYOUT_VERSION: u8 = 1;
const MAIL_KIND: u8 = b'B';

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mail {
    /// How often others wanted something.
    pub bumps: u64,
    /// Random, drawn for this state of the tuple: recognised after a lost reply.
    pub change_id: [u8; 16],
}

impl Mail {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(MAIL_KIND);
        writer.u8(0);
        writer.raw(&self.change_id);
        writer.u64(self.bumps);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one mail of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, MAIL_KIND)?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let change_id = reader.array()?;
        let bumps = reader.u64()?;
        reader.finish()?;
        Ok(Self { bumps, change_id })
    }
}

impl Anchor {
    /// How often others wanted something of a member. One read.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn mail(&self, volume: VolumeId, member: MemberNumber) -> Result<u64, AnchorError> {
        Ok(self.mail_of(volume, member).await?.0.bumps)
    }

    async fn mail_of(
        &self,
        volume: VolumeId,
        member: MemberNumber,
    ) -> Result<(Mail, Option<TupleVersion>), AnchorError> {
        let sort = mail_sort(volume, member);
        let call = MemberCall::Mail { member };
        match self.tuple(AnchorCall::Members { volume, call }, &sort).await? {
            Some((content, version)) => Ok((decode(&sort, Mail::from_bytes(&content))?, Some(version))),
            None => Ok((Mail::default(), None)),
        }
    }

    /// Has another member look at the arenas. Lost or done twice it does no harm: who waits bumps again.
    ///
    /// # Errors
    /// [`AnchorError::MemberBroken`], [`AnchorError::Contended`], or what the table says.
    pub async fn bump_mail(&self, membership: &mut Membership, to: MemberNumber) -> Result<(), AnchorError> {
        let volume = membership.volume;
        let change_id = self.env.random_bytes();
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (mail, seen) = match self.mail_of(volume, to).await {
                Ok(found) => found,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if mail.change_id == change_id {
                return Ok(());
            }
            let call = MemberCall::BumpMail {
                by: membership.seen(),
                to,
                seen,
                change_id,
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(obstacle)) => {
                    self.after(membership, obstacle).await?;
                    last = None;
                }
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&mail_sort(volume, to), last))
    }
}
