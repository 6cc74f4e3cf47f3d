//! Following the newest key ring: at the start, and while the volume is served.
//!
//! While serving, a ring is looked for only when there is something that a new epoch would seal: changes wait, or a root was committed
//! since the last look. An idle volume makes no request.

use super::{Owner, kept, newest_in};
use crate::{
    config::Config,
    enrol::{Newest, newest},
    failure::Failure,
    identity::Identity,
    joined::{Joined, is_joined},
    parts::Outside,
};
use firn_env::Env;
use firn_quantity::Span;
use firn_seal::{Keys, VerifiedKeyRing};
use firn_store::Store;
use firn_volume::{Volume, VolumeStatus};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};

/// Between two looks whether there is a reason to ask; it takes no request.
const TICK: Duration = Duration::from_secs(5);

/// How the volume's keys are followed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeysSection {
    pub every: Span,
}

impl Default for KeysSection {
    fn default() -> Self {
        // A busy month costs 8,640 listings: less than five cents.
        Self {
            every: Span(Duration::from_secs(300)),
        }
    }
}

impl KeysSection {
    pub fn check(&self) -> Result<(), String> {
        if (Duration::from_secs(1)..=Duration::from_secs(24 * 3600)).contains(&self.every.0) {
            Ok(())
        } else {
            Err("keys.every must be between 1 s and 24 h".into())
        }
    }
}

/// The key rings of the family that this edge serves.
pub struct KeyRings {
    config: Config,
    store: Arc<dyn Store>,
    identity: Identity,
    joined: Option<Joined>,
    kept: Option<VerifiedKeyRing>,
}

impl KeyRings {
    /// Takes the newest ring and opens it.
    ///
    /// # Errors
    /// If there is none that this edge may take or can open.
    pub async fn open(
        config: &Config,
        outside: &Outside,
        identity: Identity,
    ) -> Result<(Self, Keys), Failure> {
        let directory = &config.volume.state_directory;
        let mut rings = Self {
            kept: kept::load(directory, &identity.owner())?,
            joined: is_joined(config).then(|| Joined::load(config)).transpose()?,
            config: config.clone(),
            store: outside.stack.store.clone(),
            identity,
        };
        let keys = rings.renew().await?;
        Ok((rings, keys))
    }

    /// Takes the newest ring there is, keeps it, and opens it.
    async fn renew(&mut self) -> Result<Keys, Failure> {
        let ring = self.newest().await?;
        let keys = ring.open(&self.identity.secret).map_err(|error| {
            Failure::new(format!(
                "this edge's key does not open the key ring of generation {}: {error}",
                ring.generation()
            ))
        })?;
        if self.kept.as_ref() != Some(&ring) {
            kept::save(&self.config.volume.state_directory, &ring)?;
            self.kept = Some(ring);
        }
        Ok(keys)
    }

    /// The newest ring that is in the bucket, or was put there now.
    async fn newest(&self) -> Result<VerifiedKeyRing, Failure> {
        let owner = self.identity.owner();
        let least = self
            .kept
            .as_ref()
            .map_or(0, VerifiedKeyRing::generation)
            .max(self.identity.generation);
        let offered = self.offered(&owner, least).await?;
        let found = match newest_in(&*self.store, &owner, least).await {
            Ok((found, passed)) => {
                for object in passed {
                    tracing::warn!(
                        key = %object.key,
                        why = object.why,
                        "an object among the key rings is none of the tenant's and was passed over; remove it, and see who put it there"
                    );
                }
                found
            }
            Err(error) => match &self.kept {
                Some(kept) if error.exit_code() == 1 => {
                    tracing::warn!(%error, "the bucket did not answer; the key ring that this edge has seen last is used");
                    return Ok(kept.clone());
                }
                Some(_) | None => return Err(error),
            },
        };
        // Somebody else's bucket, or an empty one, is not to get this family's keys.
        if found.is_none() && self.kept.is_some() && newest_in(&*self.store, &owner, 0).await?.0.is_none() {
            return Err(no_ring(&owner, least));
        }
        let in_bucket = continued([self.kept.clone(), found.clone()])?;
        let newest = continued([in_bucket.clone(), offered])?.ok_or_else(|| no_ring(&owner, least))?;
        if found.as_ref() == Some(&newest) {
            return Ok(newest);
        }
        if self.config.volume.follow.is_some() {
            // The owner puts it there.
            return Ok(newest);
        }
        // Newer than the bucket's, or the bucket has lost it.
        match (super::keep(&newest, &*self.store).await, in_bucket) {
            (Ok(()), _) => Ok(newest),
            (Err(error), Some(older)) => {
                tracing::error!(
                    %error,
                    generation = newest.generation(),
                    "the key ring is not in the bucket; it is not used before it is, and a recovery by phrase does not find it"
                );
                Ok(older)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// What the service offers, if this edge joined it and it answers.
    async fn offered(&self, owner: &Owner, least: u64) -> Result<Option<VerifiedKeyRing>, Failure> {
        let Some(joined) = &self.joined else {
            return Ok(None);
        };
        match newest(joined, &self.config).await? {
            Newest::Ring(ring) => {
                ring.check(&owner.family, least)
                    .map_err(|error| Failure::new(format!("the service's key ring: {error}")))?;
                Ok(Some(*ring))
            }
            Newest::None => Err(Failure::new(
                "the service says that the volume has no key ring, and one was seen before; nothing was changed",
            )),
            Newest::Silent(why) => {
                tracing::warn!(
                    why,
                    "the service did not answer; the newest key ring of the bucket is used"
                );
                Ok(None)
            }
        }
    }

    /// Looks for new rings for as long as the volume is served, and lets `keys` go on with them; end it by aborting its task.
    /// `volume` is the one at hand, if there is one.
    pub async fn follow(mut self, env: Env, volume: impl Fn() -> Option<Volume> + Send, keys: Keys) {
        let every = self.config.keys.every.0;
        // Roots that were committed or adopted, and those whose key was not at hand.
        let counts = |status: &VolumeStatus| {
            let of_follower = status.following.as_ref();
            let (adopted, missed) = of_follower.map_or((0, 0), |of| (of.adoptions, of.key_misses));
            (status.checkpoints + adopted, missed)
        };
        let first = volume().map_or((0, 0), |volume| counts(&volume.status()));
        let (mut looked, mut seen) = (env.now(), first);
        loop {
            env.sleep(every.min(TICK)).await;
            let Some(volume) = volume() else { continue };
            let status = volume.status();
            let (commits, missed) = counts(&status);
            let is_active = commits != seen.0 || status.oldest_uncommitted.is_some();
            let is_missing = missed != seen.1;
            let wanted = volume.newest_keys_wanted();
            if wanted.is_none() && !is_missing && (!is_active || env.now().since(looked) < every) {
                continue;
            }
            (looked, seen) = (env.now(), (commits, missed));
            let outcome = match self.renew().await {
                Ok(renewed) => adopt(&keys, &renewed),
                Err(error) => {
                    tracing::warn!(%error, "no newer key ring was taken; this edge goes on with the keys it has");
                    Err(error.to_string())
                }
            };
            if let Some(wanted) = wanted {
                volume.newest_keys_looked(wanted, outcome);
            }
        }
    }
}

fn adopt(keys: &Keys, renewed: &Keys) -> Result<(), String> {
    match keys.adopt(renewed) {
        Ok(true) => {
            tracing::info!(epoch = %keys.current(), "new data is sealed under a new key epoch");
            Ok(())
        }
        Ok(false) => Ok(()),
        Err(error) => {
            tracing::error!(%error, "the keys of the newest key ring are not adopted");
            Err(error.to_string())
        }
    }
}

/// The last of those that are there, each checked against the one before.
fn continued(
    rings: impl IntoIterator<Item = Option<VerifiedKeyRing>>,
) -> Result<Option<VerifiedKeyRing>, Failure> {
    let mut newest: Option<VerifiedKeyRing> = None;
    for ring in rings.into_iter().flatten() {
        if let Some(newest) = &newest {
            ring.check_after(&newest.seen())
                .map_err(|error| Failure::new(format!("{error}. Nothing was changed")))?;
        }
        newest = Some(ring);
    }
    Ok(newest)
}

fn no_ring(owner: &Owner, least: u64) -> Failure {
    let prefix = firn_seal::KeyRing::object_prefix(&owner.family);
    Failure::new(if least > 1 {
        format!(
            "the store has no key ring under {prefix} that is no older than generation {least}, which was seen before: it is not the \
             store of this volume, or an old state of it"
        )
    } else {
        format!("the store has no key ring under {prefix}: it is not the store of this volume")
    })
}
