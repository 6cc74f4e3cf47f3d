//! Manifests of volumes of today in a history: begun by the administrator while clients and cleaners work, finished when all is quiet.

use firn_env::Env;
use firn_volume::{GatheringStage, ManifestStatus, Volume};
use std::time::Duration;

/// Rates at which trees are gone through: in few steps, and in many.
const RATES: [u64; 2] = [1 << 30, 64 << 10];

/// The end of it may take as long as that.
const LOOKS_MAX: u32 = 10_000;

/// Begins one, if there is none; else only changes its rate.
pub(crate) async fn begin(env: &Env, volume: &Volume) -> Result<bool, String> {
    let is_new = volume.manifest_status() == ManifestStatus::Without;
    let drawn: [u8; 1] = env.random_bytes();
    let rate = RATES[usize::from(drawn[0]) % RATES.len()];
    let begun = volume.manifest_begin(rate).await;
    begun.map(|_| is_new).map_err(|error| error.to_string())
}

/// Waits until one that was begun is whole. In fair weather nothing is lost, and nothing unreadable.
pub(crate) async fn finish(env: &Env, volume: &Volume) -> Vec<String> {
    if volume.manifest_status() == ManifestStatus::Without {
        return Vec::new();
    }
    if let Err(error) = volume.manifest_begin(RATES[0]).await {
        return vec![format!("no manifest is begun in fair weather: {error}")];
    }
    for _ in 0..LOOKS_MAX {
        match volume.manifest_status() {
            ManifestStatus::Without => return vec!["the manifest that was begun is gone".into()],
            ManifestStatus::Whole => return Vec::new(),
            ManifestStatus::Gathering(gathering)
                if gathering.stage == GatheringStage::Gaps || gathering.lost > 0 =>
            {
                return vec![format!("the manifest misses what is there: {gathering:?}")];
            }
            ManifestStatus::Gathering(_) => env.sleep(Duration::from_millis(500)).await,
        }
    }
    vec![format!(
        "the manifest is never whole: {:?}",
        volume.manifest_status()
    )]
}
