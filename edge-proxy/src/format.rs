//! Making a volume, and taking one over.

use crate::{by_inode, config::Config, failure::Failure, identity::Identity, parts::Outside, rings};
use firn_env::println;
use firn_format::{FamilyId, VolumeId};
use firn_seal::{KeyRing, Recipient, RecipientKind, RecipientSecret, RecoveryPhrase};
use firn_store::{ObjectKey, PutMode};
use firn_volume::{FormatOptions, Volume};
use std::{
    fs::OpenOptions,
    io::{IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};
use zeroize::Zeroizing;

/// The generation of a family's first key ring.
const FIRST_GENERATION: u64 = 1;

/// `firn-edge format`: recovery phrase, key ring, family, volume, identity.
pub async fn format(
    config: &Config,
    phrase_file: Option<&Path>,
    options: FormatOptions,
) -> Result<(), Failure> {
    by_inode::check_making(config, &options)?;
    let directory = &config.volume.state_directory;
    if Identity::exists(directory) {
        return Err(Failure::usage(format!(
            "{} has an identity already; nothing was changed. To make another volume, use another state directory",
            directory.display()
        )));
    }
    let outside = Outside::open(config).await?;
    firn_store::probe(&outside.env, &*outside.stack.store)
        .await
        .map_err(|error| Failure::new(format!("the store is not fit for a volume: {error}")))?;
    let env = &outside.env;
    let phrase = RecoveryPhrase::from_entropy(env.random_bytes());
    let signer = phrase.signing_key();
    let family = FamilyId(env.random_bytes());
    let volume = VolumeId(env.random_bytes());
    let secret = RecipientSecret::derive(&env.random_bytes());
    let recipients = vec![
        Recipient {
            name: "recovery".into(),
            kind: RecipientKind::Recovery,
            public: phrase.recovery_secret().public(),
        },
        Recipient {
            name: config.volume.edge_name.clone(),
            kind: RecipientKind::Edge,
            public: secret.public(),
        },
    ];
    let mut entropy = |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            let random: [u8; 32] = env.random_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    };
    let (ring, keys) =
        KeyRing::create(family, volume, recipients, &signer, &mut entropy).map_err(Failure::new)?;
    let identity = Identity {
        family,
        volume,
        tenant: signer.public(),
        secret,
        handle_key: Zeroizing::new(env.random_bytes()),
        generation: FIRST_GENERATION,
    };
    // The phrase comes first: a volume whose phrase nobody has must not exist.
    show_phrase(&phrase, phrase_file)?;
    let key = ObjectKey::new(&ring.object_key());
    outside
        .stack
        .store
        .put(&key, vec![ring.encode()], PutMode::Create)
        .await
        .map_err(Failure::new)?;
    outside.anchor(family).create_family().await?;
    let parts = outside.parts(family, volume, keys);
    Volume::format(&parts, &config.volume.name, options, &config.volume_config()?).await?;
    rings::save(directory, &ring.verify(&signer.public()).map_err(Failure::new)?)?;
    // The identity comes last: with it the volume is complete, without it nothing refers to what was made.
    identity.create(directory)?;
    println!(
        "Volume {} of family {family} is ready in {}.",
        config.volume.name, config.volume.store
    );
    println!("Serve it with: firn-edge run");
    Ok(())
}

fn show_phrase(phrase: &RecoveryPhrase, file: Option<&Path>) -> Result<(), Failure> {
    let words = phrase.expose_words();
    let Some(path) = file else {
        if !std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "the recovery phrase is shown on a terminal only; name a file for it with --phrase-file. Nothing was made",
            ));
        }
        println!(
            "The recovery phrase opens every file of this volume when all edges are lost. Write it down now:\n"
        );
        println!("    {}\n", &**words);
        println!("It is not stored anywhere and cannot be shown again. Press Enter when it is written down.");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map_err(Failure::new)?;
        return Ok(());
    };
    let failed = |error: std::io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    writeln!(out, "{}", &**words).map_err(failed)?;
    out.sync_all().map_err(failed)?;
    println!(
        "The recovery phrase is in {}. Move it to a safe place off this machine.",
        path.display()
    );
    Ok(())
}

/// `firn-edge takeover`.
pub async fn takeover(config: &Config, force: bool) -> Result<(), Failure> {
    let identity = Identity::load(&config.volume.state_directory)?;
    let outside = Outside::open(config).await?;
    let (parts, _) = outside.own_parts(config, identity).await?;
    let (tuple, _) = parts.anchor.load(parts.volume).await?;
    if !force {
        let owner = tuple.owner.as_ref().map_or("nobody", |owner| &owner.name);
        println!(
            "Volume {} is owned by {owner}. What that edge has acknowledged but not committed will not be in the",
            config.volume.name
        );
        println!(
            "volume; it goes into a salvage clone when that edge comes back. Type the volume's name to take it over:"
        );
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map_err(Failure::new)?;
        if line.trim() != config.volume.name {
            return Err(Failure::usage("not taken over; nothing was changed"));
        }
    }
    let report = Volume::takeover(&parts, &config.volume_config()?).await?;
    match (report.previous_owner, report.last_committed_ms) {
        (Some(owner), Some(at)) => {
            let seconds = (outside.env.wall().as_millis() - at).max(0) / 1000;
            println!("Taken over from {owner}, whose last commit was {seconds} s ago.");
        }
        (Some(owner), None) => println!("Taken over from {owner}, which never committed."),
        (None, _) => println!("Nobody owned the volume; it is ours."),
    }
    if !report.missing_segments.is_empty() {
        let (count, first) = (report.missing_segments.len(), &report.missing_segments[0]);
        println!(
            "WARNING: the store acknowledged {count} segments of its last run and does not have them ({first} is the first). The files \
             in them cannot be read whole; bring the objects back from the bucket's versions. `firn-edge verify` names the files. The \
             other edge's cache may have them: keep its disk."
        );
    }
    println!("Serve it with: firn-edge run");
    Ok(())
}
