//! The audit: proof by random sampling that a bucket still has what the volumes of a family need, without keys.
//!
//! ```text
//! table → roots → checkpoints → census: everything but data read whole; the bytes of data below it counted
//!                                 │ while they are counted, each of n slots draws one of them     → draws
//!                                 └ the objects that have these bytes, read as readers would      → challenges
//! what failed is looked up once more in the newest roots: still needed → found; needed by nobody → released
//! ```
//!
//! What must exist follows from the root alone: no listing is asked and no usage map, since the one is the store's word and the
//! other a hint. A node names each child by its hash and tells how many bytes it has, so a walk over the nodes, a few thousandths of
//! the data, knows all of it; snapshots and retained roots are walked where they differ from the next newer root. The seed of the draws
//! is drawn after the root was read, and no request tells what will be asked until it is asked. With the seed, which the report has,
//! anybody draws the same of the same roots again.
//!
//! So damage of nodes and inodes is found for certain, and if a share x of the bytes of data were lost or altered, whichever, n
//! challenges would all miss it with probability (1 − x)ⁿ. See decision 0195.

mod budget;
mod census;
mod draws;
mod manifest;
mod must_exist;
mod newest;
mod place;
mod report;
mod second;

pub use must_exist::{MustExist, must_exist};
pub use place::{AuditPlace, TreePlace};
pub use report::{
    AuditReport, Detection, GatheringAudit, ManifestAudit, SecondAudit, SecondDamage, VolumeAudit,
};
pub use second::SecondToAudit;

use crate::{CleanError, branches::Branch, objects::Objects};
use budget::Budget;
use census::{Census, Failure, Sample};
use draws::Draws;
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{Pointer, SegmentId, VolumeId};
use firn_ids::Hex;
use firn_quantity::Money;
use firn_store::{Metered, ProviderPrices, Route, Store, Usage};
use futures::future::join_all;
use newest::{Failures, branches_now};
use second::Second;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Challenges of one audit at most: 1 in 10,000 of the bytes is then found with 99.995 %. Each takes 100 bytes of memory.
pub const MAX_CHALLENGES: u32 = 100_000;

/// Enough to find 1 % of the bytes with 99.9 %.
pub const DEFAULT_CHALLENGES: u32 = 688;

/// Challenges under way at a time.
const READ_TOGETHER: usize = 16;

/// Nodes and inodes kept in memory, so that those that snapshots share are read once.
const CACHE_BYTES: usize = 32 << 20;

/// What an audit is to do.
#[derive(Clone, Debug)]
pub struct AuditRequest {
    /// Only this volume; `None`: all of the family.
    pub volume: Option<VolumeId>,
    /// Bytes that are drawn in each volume, with repetition; at most [`MAX_CHALLENGES`].
    pub challenges: u32,
    /// What the store may charge for all of it. What is left undone then is said.
    pub budget: Money,
    /// By which prices.
    pub prices: ProviderPrices,
    /// Which way the bytes go.
    pub route: Route,
    /// What the draws follow from: to repeat those of a report, or to let somebody else say what is drawn. `None`: drawn at random
    /// after the roots were read.
    pub seed: Option<[u8; 32]>,
    /// A second store that is audited as well, with as many draws, by what the first leaves of the budget.
    pub second: Option<SecondToAudit>,
    /// Volumes of which an audit was cut off, and where ([`VolumeAudit::goes_on_at`]): those are gone on with. Of all others the audit begins at
    /// the beginning.
    pub from: BTreeMap<VolumeId, AuditPlace>,
}

/// How far an audit is, for whoever shows it meanwhile.
#[derive(Debug, Default)]
pub struct AuditProgress {
    /// Nodes and inodes read.
    pub read_objects: AtomicU64,
    /// Bytes of data counted.
    pub data_bytes: AtomicU64,
    /// Challenges answered.
    pub answered: AtomicU64,
}

/// Audits volumes of a family. Changes nothing; cancel-safe.
///
/// # Errors
/// [`CleanError`] if table or store cannot be asked; [`CleanError::Damaged`] if a root itself is lost or damaged, so that
/// nothing can be said about what hangs on it. Other damage is in the report.
pub async fn audit(
    env: &Env,
    store: Arc<dyn Store>,
    anchor: &Anchor,
    request: &AuditRequest,
    progress: &AuditProgress,
) -> Result<AuditReport, CleanError> {
    let store = Metered::new(store);
    let store_meter = store.meter();
    let store: Arc<dyn Store> = Arc::new(store);
    let metered = |to: &SecondToAudit| Metered::new(to.store.clone());
    let second_store = request.second.as_ref().map(|to| (metered(to), to));
    let second_meter = second_store.as_ref().map(|(second, to)| (second.meter(), *to));
    let budget = Budget::new(store_meter, second_meter, request);
    let second = second_store.map(|(second, to)| {
        let stores: (_, Arc<dyn Store>) = (store.clone(), Arc::new(second));
        Second::new(env, stores, anchor, to.is_behind)
    });
    let mut objects = Objects::new(env, store, anchor, CACHE_BYTES);
    let branches = branches_now(&mut objects).await?;
    let wanted = |branch: &&Branch| request.volume.is_none_or(|volume| volume == branch.volume);
    let mut volumes = Vec::new();
    for branch in branches.iter().filter(wanted) {
        let audited = audit_volume(&mut objects, branch, request, second.as_ref(), &budget, progress);
        volumes.extend(audited.await?);
    }
    Ok(AuditReport {
        volumes,
        prices: request.prices.name.clone(),
        cost: budget.cost(),
        usage: budget.usage(),
    })
}

/// `None` of a volume that was never committed.
async fn audit_volume(
    objects: &mut Objects,
    branch: &Branch,
    request: &AuditRequest,
    second: Option<&Second>,
    budget: &Budget,
    progress: &AuditProgress,
) -> Result<Option<VolumeAudit>, CleanError> {
    let (Some(_), Some(root)) = (&branch.head, &branch.tuple.root) else {
        return Ok(None);
    };
    let challenges = request.challenges.min(MAX_CHALLENGES) as usize;
    let seed = request.seed.unwrap_or_else(|| objects.env.random_bytes());
    let draws = Draws::new(&seed, &branch.volume.0, challenges);
    let mut census = Census::new(draws, progress);
    let from = request.from.get(&branch.volume).copied();
    // What others of the family were refused is not this one's.
    budget.was_short();
    let walked = walk(objects, branch, &mut census, from, budget).await?;
    let counted = census.end();
    let mut report = VolumeAudit {
        volume: branch.volume.to_string(),
        name: branch.tuple.name.clone(),
        version: root.version.0,
        root: root.uid.to_string(),
        committed_at_ms: root.committed_at_ms,
        retained_roots: branch.retained.len() as u64,
        walked_roots: walked.roots,
        read_objects: counted.read_objects,
        read_bytes: counted.read_bytes,
        data_objects: counted.data_objects,
        data_bytes: counted.data_bytes,
        asked: challenges as u64,
        seed: hex(&seed),
        drawn: hex(&digest(&counted.drawn)),
        began_at: from,
        goes_on_at: walked.cut,
        ..VolumeAudit::default()
    };
    let mut failures = counted.failures;
    let drawn_segments: Vec<SegmentId> = counted
        .drawn
        .iter()
        .map(|sample| sample.pointer.location.segment)
        .collect();
    let drawn = counted.drawn.clone();
    let answered = challenge(
        objects,
        counted.drawn,
        budget,
        progress,
        &mut failures,
        &mut report,
    )
    .await?;
    let is_whole = walked.cut.is_none();
    // With nothing to draw there is nothing left unasked.
    report.is_complete = is_whole && from.is_none() && (answered || counted.data_bytes == 0);
    if is_whole {
        let challenges = (&seed, challenges, &drawn_segments[..]);
        manifest::check(objects, branch, challenges, budget, &mut failures, &mut report).await?;
    }
    failures.settle(objects, branch, &mut report).await?;
    report.estimate();
    if let Some(second) = second {
        let challenges = (&seed, challenges, &drawn[..]);
        let checked = second.check(objects, branch, challenges, budget, progress).await;
        report.is_complete &= checked.is_complete;
        report.second = Some(checked);
    }
    // What is behind the trees gets all the money once; what that is not enough for does not keep the next round waiting.
    if is_whole && budget.was_short() && from != Some(AuditPlace::Manifest) {
        report.goes_on_at = Some(AuditPlace::Manifest);
    }
    Ok(Some(report))
}

/// What came of the walk over a volume's roots.
struct Walked {
    /// Retained roots that were gone through.
    roots: u64,
    /// Where the money ended.
    cut: Option<AuditPlace>,
}

/// Walks the head and the retained roots, or what of them is behind a place.
async fn walk(
    objects: &mut Objects,
    branch: &Branch,
    census: &mut Census<'_>,
    from: Option<AuditPlace>,
    budget: &Budget,
) -> Result<Walked, CleanError> {
    let mut walked = Walked { roots: 0, cut: None };
    let Some(head) = &branch.head else {
        return Ok(walked);
    };
    let in_head = match from {
        None => Some(TreePlace::ALL),
        Some(AuditPlace::Head(at)) => Some(at),
        Some(AuditPlace::Retained { .. } | AuditPlace::Manifest) => None,
    };
    if let Some(at) = in_head
        && let Some(cut) = census.walk(objects, (&head.trees, at), None, budget).await?
    {
        walked.cut = Some(AuditPlace::Head(cut));
        return Ok(walked);
    }
    let mut newer = &head.trees;
    for older in branch.retained.iter().rev() {
        if firn_env::planted!("cleaner.audit_without_snapshots") {
            break;
        }
        let version = older.version.0;
        let at = match from {
            Some(AuditPlace::Manifest) => None,
            Some(AuditPlace::Retained { version: cut, .. }) if version > cut => None,
            Some(AuditPlace::Retained { version: cut, at }) if version == cut => Some(at),
            _ => Some(TreePlace::ALL),
        };
        if let Some(at) = at {
            if let Some(at) = census.walk(objects, (older, at), Some(newer), budget).await? {
                walked.cut = Some(AuditPlace::Retained { version, at });
                break;
            }
            walked.roots += 1;
        }
        newer = older;
    }
    Ok(walked)
}

/// What was drawn, slot by slot, as one hash.
fn digest(drawn: &[Sample]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("firn 1 audit drawn");
    for Sample { pointer, place, .. } in drawn {
        hasher.update(&pointer.uid.0);
        hasher.update(&place.inode.to_le_bytes());
        hasher.update(&place.index.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn hex(bytes: &[u8; 32]) -> String {
    Hex(bytes).to_string()
}

/// Reads what was drawn; whether the money was enough for all of it.
async fn challenge(
    objects: &mut Objects,
    drawn: Vec<Sample>,
    budget: &Budget,
    progress: &AuditProgress,
    failures: &mut Failures,
    report: &mut VolumeAudit,
) -> Result<bool, CleanError> {
    // In the order of the slots: wherever this is broken off, what was answered is a sample without a bias.
    for group in drawn.chunks(READ_TOGETHER) {
        let bytes_down = group
            .iter()
            .map(|sample| u64::from(sample.pointer.location.length))
            .sum();
        if !budget.allows(&Usage {
            ranged_gets: group.len() as u64,
            bytes_down,
            ..Usage::default()
        }) {
            return Ok(false);
        }
        let mut settled = Vec::with_capacity(group.len());
        for sample in group {
            let location = objects.settle(&sample.pointer.location).await?;
            settled.push(Pointer {
                location: location.unwrap_or(sample.pointer.location),
                ..sample.pointer
            });
        }
        let reads = group.iter().zip(&settled);
        let reads = reads.map(|(sample, pointer)| objects.read_at(pointer, sample.place));
        let read = join_all(reads).await;
        for (sample, outcome) in group.iter().zip(read) {
            let mut is_intact = match outcome? {
                Ok(_) => true,
                Err(misread) => {
                    firn_env::planted!("cleaner.audit_believes_presence")
                        && !misread.to_string().starts_with("there is no")
                }
            };
            if !is_intact {
                // As a reader would go on: by whatever record leads there.
                is_intact = match objects.get_anew(&sample.pointer, sample.place).await {
                    Ok(_) => true,
                    Err(CleanError::Damaged(_)) => {
                        failures.add(Failure {
                            sample: *sample,
                            is_drawn: true,
                        });
                        false
                    }
                    Err(error) => return Err(error),
                };
            }
            report.intact += u64::from(is_intact);
            progress.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(true)
}
