//! `firn-edge recover`: a volume from its bucket and the recovery phrase, when the table and all edges are lost.

use crate::{
    config::Config,
    failure::Failure,
    identity::Identity,
    parts::Outside,
    report,
    rings::{self, Owner, newest_in},
    snapshots::utc,
};
use firn_env::println;
use firn_format::{FamilyId, VolumeId};
use firn_mirror::Parity;
use firn_seal::{KeyRing, Keys, Recipient, RecipientKind, RecipientSecret, RecoveryPhrase, VerifiedKeyRing};
use firn_store::{ObjectKey, Store};
use firn_volume::recover::{FoundCheckpoint, RecoveryScan};
use std::{collections::BTreeSet, path::Path};
use zeroize::Zeroizing;

/// Families looked for in one bucket.
const FAMILIES_MAX: usize = 1000;

/// What was agreed to.
#[derive(Clone, Copy, Debug)]
pub struct Consent {
    /// To make the volume again.
    pub yes: bool,
    /// Although the store has parities in place of segments.
    pub incomplete: bool,
}

/// Shows what there is; with `yes`, enters the volume in the table again and makes this edge's identity.
pub async fn recover(
    config: &Config,
    phrase_file: &Path,
    family: Option<&str>,
    volume: Option<&str>,
    consent: Consent,
) -> Result<(), Failure> {
    let directory = &config.volume.state_directory;
    if Identity::exists(directory) {
        return Err(Failure::usage(format!(
            "{} has an identity already; recover with an empty state directory. Nothing was changed",
            directory.display()
        )));
    }
    let text = std::fs::read_to_string(phrase_file)
        .map(Zeroizing::new)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", phrase_file.display())))?;
    let phrase = RecoveryPhrase::parse(text.trim()).map_err(|error| {
        Failure::usage(format!("{}: {error}; nothing was changed", phrase_file.display()))
    })?;
    let outside = Outside::open(config).await?;
    let store = &*outside.stack.store;
    let family = choose_family(store, family).await?;
    let (ring, keys) = open_ring(store, &family, &phrase).await?;
    let parts = outside.parts(family, VolumeId([0; 16]), keys.clone());
    let scan = firn_volume::recover::scan(&parts, &config.volume_config()?).await?;
    show(&family, &scan);
    check_parities(&outside, family, consent).await?;
    let found = choose_volume(&scan, volume)?;
    if let Some(stale) = firn_volume::recover::stale_table(&parts, &config.volume_config()?, found).await? {
        return Err(Failure::new(stale).because(
            "This table has the volume, so nothing can be recovered into it: name a new one in the configuration (volume.table), with \
             this same empty state directory, or accept what it shows",
        ));
    }
    let name = &config.volume.name;
    println!(
        "\nVolume {name} would go on from version {} of {}. That may be one checkpoint that was uploaded and never committed: \
         then it is one commit newer than what the lost table said, and holds nothing that was not written. What an edge \
         acknowledged after it is in that edge's journal only, which is not replayed into a recovered volume.",
        found.version,
        utc(found.committed_at_ms)
    );
    if !consent.yes {
        println!(
            "\nNothing was changed. To do it, run the same command with --yes; no edge of this volume may be running."
        );
        return Ok(());
    }
    firn_volume::recover::restore(&parts, &scan, found, name).await?;
    let identity = make_identity(config, &outside, &ring, &keys, &phrase, (family, found.volume)).await?;
    identity.create(directory)?;
    println!("Recovered. Serve it with: firn-edge run; then check everything with: firn-edge verify");
    Ok(())
}

/// A second store whose copies were dropped has not all of a volume, and its newest checkpoint does not show it.
async fn check_parities(outside: &Outside, family: FamilyId, consent: Consent) -> Result<(), Failure> {
    let store = outside.stack.store.clone();
    let other = outside.second.as_ref().map(|second| second.stack.store.clone());
    let stores = (other.unwrap_or_else(|| store.clone()), store);
    let parity = Parity::new(&outside.env, stores, family);
    let (segments, bytes) = parity.lacking().await.map_err(Failure::new)?;
    if segments == 0 {
        return Ok(());
    }
    let lacking = format!(
        "this store has parities in place of {segments} segments with {}: it is a second store whose copies were dropped, and cannot bring the \
         volume back alone",
        report::size(bytes)
    );
    if consent.incomplete {
        println!("\n{lacking}. Files that lie in those cannot be read; firn-edge verify names them.");
        return Ok(());
    }
    Err(Failure::new(format!("{lacking}. Nothing was changed")).because(
        "Name the first store in volume.store, or if that is gone for good, say --incomplete: files that lie in those segments then cannot be read",
    ))
}

/// The family that was named, or the only one in the bucket.
async fn choose_family(store: &dyn Store, named: Option<&str>) -> Result<FamilyId, Failure> {
    if let Some(named) = named {
        return named
            .parse()
            .map_err(|error| Failure::usage(format!("--family {named}: {error}; nothing was changed")));
    }
    let mut families = BTreeSet::new();
    let mut after: Option<ObjectKey> = None;
    while families.len() < FAMILIES_MAX {
        let page = store.list("", after.as_ref()).await.map_err(Failure::new)?;
        let Some(first) = page.objects.first() else { break };
        let text = first.key.to_string();
        let head = text.split('/').next().unwrap_or_default();
        if let Ok(family) = head.parse::<FamilyId>() {
            families.insert(family);
        }
        // Past everything of this family: `0` comes after `/`.
        after = Some(ObjectKey::new(&format!("{head}0")));
    }
    let mut all = families.iter();
    match (all.next(), all.next()) {
        (None, _) => Err(Failure::new(
            "the store holds no family of volumes: it is not the bucket (or not the prefix) of one. Nothing was changed",
        )),
        (Some(family), None) => Ok(*family),
        (Some(_), Some(_)) => {
            let list: Vec<String> = families.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!(
                "the store holds several families; name one with --family: {}. Nothing was changed",
                list.join(", ")
            )))
        }
    }
}

/// The newest key ring that the phrase's key signed, opened with the phrase.
async fn open_ring(
    store: &dyn Store,
    family: &FamilyId,
    phrase: &RecoveryPhrase,
) -> Result<(VerifiedKeyRing, Keys), Failure> {
    let owner = Owner {
        family: *family,
        tenant: phrase.signing_key().public(),
    };
    let (ring, passed) = newest_in(store, &owner, 0).await?;
    for object in &passed {
        println!(
            "passed over: {} is no key ring of this phrase: {}",
            object.key, object.why
        );
    }
    let ring = ring.ok_or_else(|| {
        let prefix = KeyRing::object_prefix(family);
        Failure::new(if passed.is_empty() {
            format!("the store has no key ring under {prefix}; nothing was changed")
        } else {
            format!(
                "no key ring that was looked at under {prefix} belongs to this phrase; nothing was changed"
            )
        })
    })?;
    let keys = ring.open(&phrase.recovery_secret()).map_err(|error| {
        Failure::new(format!(
            "the phrase does not open the key ring of generation {}: {error}",
            ring.generation()
        ))
    })?;
    Ok((ring, keys))
}

fn show(family: &FamilyId, scan: &RecoveryScan) {
    println!("Family {family}: {} segments.", scan.segments);
    for found in &scan.volumes {
        let origin = found
            .cloned_from
            .map(|origin| format!(", a clone of {origin}"))
            .unwrap_or_default();
        println!(
            "  volume {}: version {} (epoch {}) of {}, {} files, {}, {} snapshots{origin}",
            found.volume.hex(),
            found.version,
            found.epoch,
            utc(found.committed_at_ms),
            found.files,
            report::size(found.used_bytes),
            found.snapshots,
        );
    }
    for passed in &scan.passed_over {
        println!("  passed over: {passed}");
    }
    for foreign in &scan.foreign {
        println!("  ignored: {foreign} is no segment");
    }
}

fn choose_volume<'a>(scan: &'a RecoveryScan, named: Option<&str>) -> Result<&'a FoundCheckpoint, Failure> {
    match (named, &scan.volumes[..]) {
        (_, []) => Err(Failure::new(
            "no whole checkpoint was found: there is nothing to go on from. Nothing was changed",
        )),
        (None, [only]) => Ok(only),
        (None, _) => Err(Failure::usage(
            "the family has several volumes (above); name one with --volume (or --volume-id, if the configuration has several). Nothing was changed",
        )),
        (Some(named), all) => all
            .iter()
            .find(|found| found.volume.hex().to_string() == named || found.volume.to_string() == named)
            .ok_or_else(|| Failure::usage(format!("there is no volume {named}; nothing was changed"))),
    }
}

/// A new edge of the family: a recipient of its own in the key ring, which the phrase's key signs.
async fn make_identity(
    config: &Config,
    outside: &Outside,
    ring: &VerifiedKeyRing,
    keys: &Keys,
    phrase: &RecoveryPhrase,
    (family, volume): (FamilyId, VolumeId),
) -> Result<Identity, Failure> {
    let env = &outside.env;
    let signer = phrase.signing_key();
    let secret = RecipientSecret::derive(&env.random_bytes());
    let mut entropy = |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            let random: [u8; 32] = env.random_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    };
    let recipient = Recipient {
        // A name is unique in the ring, and the lost edge's stays there until it is removed.
        name: format!("{}-recovered-{}", config.volume.edge_name, ring.generation() + 1),
        kind: RecipientKind::Edge,
        public: secret.public(),
    };
    let next = ring
        .add_recipient(keys, recipient, &signer, &mut entropy)
        .map_err(Failure::new)?;
    let next = next.verify(&signer.public()).map_err(Failure::new)?;
    rings::keep(&next, &*outside.stack.store).await?;
    rings::save(&config.volume.state_directory, &next)?;
    Ok(Identity {
        family,
        volume,
        tenant: signer.public(),
        secret,
        handle_key: Zeroizing::new(env.random_bytes()),
        generation: ring.generation() + 1,
    })
}
