//! Key rotations and rekeys in a history: begun by the administrator while clients work, finished and judged when all is quiet.
//!
//! The judge is a scan: verification counts what is reachable by the epoch of its key, and the volume's word on which keys are needed
//! must agree with it.

use firn_env::Env;
use firn_format::{FamilyId, KeyEpoch};
use firn_seal::{EpochKey, Keys};
use firn_volume::Volume;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Rotations of one history.
const EPOCHS_MAX: u32 = 6;

/// A rekey at the end of a history may take as long as that.
const LOOKS_MAX: u32 = 10_000;

/// Rates at which rekeys are done: in one step, and in many.
pub(crate) const RATES: [u64; 3] = [1 << 30, 64 << 10, 16 << 10];

/// The family's key ring, which every start takes the newest of.
#[derive(Clone)]
pub(crate) struct Ring(Arc<Mutex<u32>>);

impl Ring {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(1)))
    }

    /// All keys there are.
    pub fn keys(&self, family: FamilyId) -> Keys {
        let newest = *self.0.lock().expect("no panic under this lock");
        let epochs = (1..=newest).map(|epoch| (KeyEpoch(epoch), EpochKey::from_bytes([epoch as u8 + 2; 32])));
        Keys::new(family, epochs.collect())
    }

    fn rotate(&self) {
        let mut newest = self.0.lock().expect("no panic under this lock");
        *newest = (*newest + 1).min(EPOCHS_MAX);
    }
}

/// Rotates now and then, and starts a rekey.
pub(crate) async fn rekey(
    volume: &Volume,
    (ring, keys): (&Ring, &Keys),
    rotates: bool,
    bytes_per_second: u64,
) -> Result<(), String> {
    if rotates {
        ring.rotate();
    }
    keys.adopt(&ring.keys(keys.family()))
        .map_err(|error| format!("keys: {error}"))?;
    volume
        .rekey_start(bytes_per_second)
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

/// What the volume says of its keys, against what it holds; then the same after a rekey to the end. What is wrong, in words.
pub(crate) async fn finish(env: &Env, volume: &Volume) -> Vec<String> {
    let mut wrong = against_a_scan(volume).await;
    if let Err(error) = volume.rekey_start(RATES[0]).await {
        return vec![format!("no rekey in fair weather: {error}")];
    }
    for _ in 0..LOOKS_MAX {
        if volume.rekey_status().under_way.is_none() {
            break;
        }
        env.sleep(Duration::from_millis(500)).await;
    }
    let status = volume.rekey_status();
    if status.oldest != Some(status.newest) {
        wrong.push(format!("the rekey does not end: {status:?}"));
    }
    wrong.extend(against_a_scan(volume).await);
    wrong
}

async fn against_a_scan(volume: &Volume) -> Vec<String> {
    // Before the scan: a rekey may end while it reads, and says of a later tree than that what it holds.
    let status = volume.rekey_status();
    let report = match volume.verify(&|_| {}).await {
        Ok(report) => report,
        Err(error) => return vec![error.to_string()],
    };
    let live = report.live_epochs.keys().min().copied();
    let all = report
        .snapshot_epochs
        .keys()
        .chain(report.live_epochs.keys())
        .min();
    let mut wrong = Vec::new();
    if live < status.oldest {
        wrong.push(format!("the tree holds what is under {live:?}: {status:?}"));
    }
    if all.copied() < status.oldest_needed() {
        wrong.push(format!("something reachable is under {all:?}: {status:?}"));
    }
    wrong
}
