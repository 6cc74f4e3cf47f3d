//! Making and opening a volume: format, recovery.
//!
//! Recovery = newest root + journal replay (I6). The journal is bound to the ownership epoch under which it was written: on
//! any other owner's root it is never replayed but salvaged (I8).

use crate::{
    branch::{NewBranch, commit_branch},
    checkpoint::Packer,
    config::VolumeConfig,
    error::VolumeError,
    freshness::{self, Doubt},
    kept_checkpoint,
    load::{LoadedRoot, load_root},
    local::LocalState,
    manifest::Manifest,
    objects::Objects,
    ownership_statement::{OwnershipStatement, RootSigner, StatementKind},
    parts::{Parts, file_system_id},
    replay::RecoveryReport,
    salvage::has_journal,
    start::{Start, StartRoot},
    state::{State, VolumeCounters, root_inode},
    volume::Volume,
};
use firn_anchor::{AnchorError, Ownership, RememberedRoot, Root, WriterTenure};
use firn_format::{ROOT_DIRECTORY, Version, WriterId, checkpoint_place};
use firn_vfs::Timestamp;
use std::collections::BTreeMap;

/// How a new volume is laid out; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a data block: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// Mode of the root directory.
    pub root_mode: u32,
    /// Whose it is: uid and gid.
    pub root_owner: (u32, u32),
    /// Whether it says which segments must exist (decision 0171). Not by default: cleaners and edges of the release before stop at such a
    /// volume.
    pub manifest: bool,
    /// Whether several edges write it at the same moment, each what it holds by a lease of an inode, for ever (decision 0231).
    pub by_inode: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            block_bytes: 32 << 10,
            root_mode: 0o755,
            root_owner: (0, 0),
            manifest: false,
            by_inode: false,
        }
    }
}

impl Volume {
    /// Makes a new volume in a family that exists: its tuple, and a first checkpoint with an empty root directory.
    ///
    /// # Errors
    /// If the volume exists, or store or anchor fail. A volume that was made only in part can be formatted again; one that is to be shared by inode and that an earlier
    /// try made, but did not mark so, is marked by [`Self::mark_by_inode`].
    ///
    /// # Panics
    /// If it is to have a manifest and to be shared by inode.
    pub async fn format(
        parts: &Parts,
        name: &str,
        options: FormatOptions,
        config: &VolumeConfig,
    ) -> Result<(), VolumeError> {
        assert!(
            !(options.by_inode && options.manifest),
            "members keep no manifest"
        );
        let local = LocalState::load(&parts.env).await?;
        match parts.anchor.create_volume(parts.volume, name).await {
            Ok(()) => {}
            Err(AnchorError::VolumeExists { .. }) => {
                let (tuple, _) = parts.anchor.load(parts.volume).await?;
                if tuple.root.is_some() {
                    return Err(AnchorError::VolumeExists { volume: parts.volume }.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        let ownership = parts
            .anchor
            .acquire(parts.volume, local.owner, &config.owner_name)
            .await?;
        let now = Timestamp::from_nanos(parts.env.wall().0);
        let mut state = State::new(
            file_system_id(parts.volume),
            VolumeCounters::new(parts.env.random_bytes()),
            None,
        );
        let root = root_inode(ROOT_DIRECTORY, options.root_mode, options.root_owner, now);
        state.create_root(&root, now);
        let block_bytes = options.block_bytes;
        let manifest = match options.manifest {
            true => Manifest::of_new_volume(parts.anchor.cleaner_round().await?.0.round),
            false => Manifest::default(),
        };
        let base = NewBranch {
            version: Version(1),
            previous: None,
            fork: None,
            block_bytes,
            manifest,
        };
        let objects = parts.objects(config).await?;
        let tenure = WriterTenure::Owner {
            volume: parts.volume,
            epoch: ownership.epoch(),
        };
        let writer = parts.anchor.next_writer_for(tenure).await?;
        let context = parts.packer(config, &objects, writer);
        if options.manifest {
            context.finished.want();
        }
        let packer = Packer::new(context, base.version);
        commit_branch(parts, ownership, packer, &mut state, BTreeMap::new(), base).await?;
        match options.by_inode {
            true => Self::mark_by_inode(parts).await,
            false => Ok(()),
        }
    }

    /// Marks a volume that was just made as one that several edges write at the same moment. One that has been marked stays as it is.
    ///
    /// # Errors
    /// If an edge owns it or has written it, or the anchor fails.
    pub async fn mark_by_inode(parts: &Parts) -> Result<(), VolumeError> {
        parts.env.fault_point("format.before_mark").await;
        parts.anchor.share_by_inode(parts.volume).await?;
        Ok(())
    }

    /// Opens the volume: takes ownership, reads the newest root, replays the journal, and starts to serve.
    ///
    /// # Errors
    /// `OwnedByOther` if another edge has it; `SalvageFirst` if this edge was fenced with writes in its journal; whatever
    /// keeps root or journal from being read. Nothing was changed then, but if it is a record of the journal that cannot be read: then
    /// the volume is this edge's.
    pub async fn open(parts: Parts, config: VolumeConfig) -> Result<(Self, RecoveryReport), VolumeError> {
        Self::open_with(parts, config, None, Doubt::Refuse).await
    }

    /// The same with objects that are open already, and with what a doubt is taken for.
    pub(crate) async fn open_with(
        parts: Parts,
        config: VolumeConfig,
        objects: Option<Objects>,
        doubt: Doubt,
    ) -> Result<(Self, RecoveryReport), VolumeError> {
        let env = parts.env.clone();
        let mut local = LocalState::load(&env).await?;
        let (tuple, _) = parts.anchor.load(parts.volume).await?;
        let is_others = tuple.owner.as_ref().is_some_and(|owner| owner.id != local.owner);
        // Of a volume that is another's, nothing will be served.
        let checked = match is_others || firn_env::planted!("volume.trust_the_table") {
            true => tuple,
            false => freshness::check_with(&parts, &config, Some(&local), doubt).await?,
        };
        // Before anything is taken: a root that this build cannot read is left to whoever can.
        let (objects, read) = match checked.root.as_ref().filter(|_| !is_others) {
            Some(root) => {
                let objects = match objects {
                    Some(objects) => objects,
                    None => parts.objects(&config).await?,
                };
                let loaded = load_root(&objects, (parts.family(), parts.volume), root).await?;
                (Some(objects), Some((root.clone(), loaded)))
            }
            None => (objects, None),
        };
        let acquired = if skips_acquire(&local) {
            let taken = parts
                .anchor
                .takeover(parts.volume, local.owner, &config.owner_name)
                .await;
            taken.map(|taken| taken.ownership)
        } else {
            parts
                .anchor
                .acquire(parts.volume, local.owner, &config.owner_name)
                .await
        };
        let ownership = match acquired {
            Ok(ownership) => ownership,
            Err(error @ AnchorError::OwnedByOther { .. }) => {
                // Who knows that the volume is another's does not serve it when the cloud is away.
                kept_checkpoint::forget(&**env.disk()).await?;
                return Err(match local.tenure {
                    Some(tenure) if has_journal(&parts, &config, tenure).await? => {
                        VolumeError::SalvageFirst { tenure }
                    }
                    Some(_) | None => error.into(),
                });
            }
            Err(error) => return Err(error.into()),
        };
        if ownership.root() != checked.root.as_ref() && !skips_acquire(&local) {
            return Err(AnchorError::Contended {
                what: format!("volume {}", parts.volume),
                attempts: 1,
            }
            .into());
        }
        Self::open_owned(parts, config, (objects, read), &mut local, ownership).await
    }

    async fn open_owned(
        parts: Parts,
        config: VolumeConfig,
        (objects, read): (Option<Objects>, Option<(Root, LoadedRoot)>),
        local: &mut LocalState,
        ownership: Ownership,
    ) -> Result<(Self, RecoveryReport), VolumeError> {
        let env = parts.env.clone();
        let tenure = match local.tenure {
            Some(remembered) if skips_acquire(local) => remembered,
            _ => ownership.tenure(),
        };
        if let Some(old) = local.tenure.filter(|old| *old != tenure) {
            kept_checkpoint::forget(&**env.disk()).await?;
            if has_journal(&parts, &config, old).await? {
                return Err(VolumeError::SalvageFirst { tenure: old });
            }
            local.tenure = None;
        }
        match &mut local.seen {
            Some(seen) => {
                seen.observe(ownership.tuple())?;
            }
            None => local.seen = Some(RememberedRoot::new(parts.volume, ownership.tuple())),
        }
        let root = ownership.root().cloned().ok_or(VolumeError::NotFormatted)?;
        let objects = match objects {
            Some(objects) => objects,
            None => parts.objects(&config).await?,
        };
        let loaded = match read {
            Some((of, loaded)) if of == root => loaded,
            Some(_) | None => load_root(&objects, (parts.family(), parts.volume), &root).await?,
        };
        let registered = WriterTenure::Owner {
            volume: parts.volume,
            epoch: ownership.epoch(),
        };
        let writer = match parts.anchor.next_writer_for(registered).await? {
            _ if firn_env::planted!("volume.reuse_writer_incarnation") => WriterId(1),
            writer => writer,
        };
        let copy = match kept_checkpoint::load(&**env.disk(), root.version).await {
            Ok(Some(kept))
                if objects
                    .open_kept(kept.clone(), &root.uid, checkpoint_place(root.version))
                    .is_ok() =>
            {
                None
            }
            Ok(_) | Err(_) => objects.sealed(&root.location).await,
        };
        let signer = RootSigner::draw(&env, parts.family(), parts.volume, ownership.grant());
        let statement = OwnershipStatement {
            kind: StatementKind::Started,
            volume: parts.volume,
            epoch: ownership.epoch(),
            grant: ownership.grant(),
            owner: ownership.owner().clone(),
            writer,
            signer: signer.public(),
            base: Some((&root).into()),
            abandoned: Version(0),
            made_at_ms: env.wall().as_millis(),
        };
        // Before the first commit that it announces.
        statement.put(&env, &*parts.store, &parts.keys).await?;
        // The tenure is remembered before the first record of its journal can exist, and the root before what it covers is removed.
        local.tenure = Some(tenure);
        (local.writer, local.shares_taken) = (Some(writer), 0);
        if !local.remember(&**env.disk(), copy.as_ref()).await? {
            local.save(&**env.disk()).await?;
        }
        Start {
            root: StartRoot {
                version: root.version,
                uid: root.uid,
                committed_at_ms: root.committed_at_ms,
            },
            writer,
            tenure,
            ownership: Some((ownership, signer)),
            local: local.clone(),
            loaded,
            objects,
            parts,
            config,
        }
        .run()
        .await
    }
}

/// A planted bug: after a start without the cloud, the volume is taken for ours whoever has it.
fn skips_acquire(local: &LocalState) -> bool {
    firn_env::planted!("volume.return_without_acquire") && local.shares_taken > 0
}
