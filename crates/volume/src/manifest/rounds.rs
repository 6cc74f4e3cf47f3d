//! Rounds of retirement that a manifest has not taken in yet.

use super::Manifest;
use crate::{gathering, volume::Inner};
use firn_anchor::{AnchorError, StoredRound};

/// Taken in by one checkpoint at most: some thousand segments. An edge that was away for long does the rest with the next ones.
const ROUNDS_A_CHECKPOINT: usize = 32;

/// The next rounds, in order; asked for as seldom as proposals are. What the table does not say now it says later. With a round missing the manifest
/// ends.
pub(crate) async fn newer_rounds(inner: &Inner, manifest: &mut Manifest) -> Vec<StoredRound> {
    let now = inner.env.now();
    let every = inner.config.merge_every;
    let Some(part) = &manifest.part else {
        return Vec::new();
    };
    if manifest.looked.is_some_and(|looked| now.since(looked) < every) {
        return Vec::new();
    }
    let newest = part.newest_round;
    manifest.looked = Some(now);
    match look(inner, newest).await {
        Ok(Some(rounds)) => rounds,
        Ok(None) if manifest.gathering().is_some() => {
            if let Err(error) = gathering::begin_anew(inner, manifest).await {
                tracing::debug!(%error, "the table does not say now what was retired");
            }
            Vec::new()
        }
        Ok(None) => {
            tracing::error!(
                round = newest,
                "retirements after this round are not known any more: the manifest of segments ends here, and audits go by the trees alone from now \
                 on. No data is concerned"
            );
            inner.checkpointer.packer.finished.unwant();
            *manifest = Manifest::default();
            Vec::new()
        }
        Err(error) => {
            tracing::debug!(%error, "the table does not say now what was retired");
            Vec::new()
        }
    }
}

/// `None`: one is missing.
async fn look(inner: &Inner, newest: u64) -> Result<Option<Vec<StoredRound>>, AnchorError> {
    let (round, _) = inner.anchor.cleaner_round().await?;
    if round.round <= newest {
        // A table that is behind was put back or made anew, and will give the numbers that were taken in to other rounds.
        return Ok((round.round == newest).then(Vec::new));
    }
    let rounds = inner.anchor.list_rounds(newest, ROUNDS_A_CHECKPOINT).await?;
    let expected = newest + 1..;
    let follow = rounds
        .iter()
        .zip(expected)
        .all(|(round, number)| round.number == number);
    Ok((follow && !rounds.is_empty()).then_some(rounds))
}
