//! Packing: sealed objects into segments, segments into the store.
//!
//! Objects are packed children first, because a pointer holds its target's place in the log. A full segment is uploaded by
//! a task of its own while the next is filled; the number under way is bounded, so a slow cloud holds the packer, not memory.
//! Segments are garbage until a root that names them is committed, so no order is needed between uploads, only that all are
//! done before the commit.

use super::{
    CheckpointError, Compressibility, Uplink, Uploads, Urgency,
    read_back::{Found, compare, tail_of, wait_for_room},
};
use crate::{
    manifest::FinishedSegments,
    objects::{Object, Objects, ReadError},
    usage::UsageChanges,
};
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::{Backoff, Env, Task};
use firn_format::{
    Child, Codec, EncodedObject, FamilyId, Kind, ListedSegment, MANIFEST, ManifestEntry, Place, Pointer,
    SegmentBuilder, SegmentId, USAGE_MAP, Version, WriterId,
};
use firn_seal::{Compression, Keys, ObjectSealer};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Between tries of an upload, for as long as it takes: the journal keeps the data meanwhile.
const UPLOAD_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).with_half_jitter();

/// What a packer needs to know of its volume.
#[derive(Clone)]
pub struct PackerContext {
    pub env: Env,
    pub store: Arc<dyn Store>,
    /// Knows what was retired.
    pub anchor: Anchor,
    pub objects: Objects,
    pub keys: Keys,
    pub family: FamilyId,
    pub writer: WriterId,
    /// The next segment's sequence; shared by all checkpoints of this incarnation of the writer.
    pub next_segment: Arc<AtomicU64>,
    pub segment_bytes: u64,
    pub uploads_max: usize,
    pub compression: Compression,
    /// Which files are worth trying it on; shared by all checkpoints.
    pub compressibility: Arc<Compressibility>,
    pub progress: Arc<UploadProgress>,
    /// Segments for the manifest; shared by all checkpoints.
    pub finished: FinishedSegments,
}

/// What the uploads are doing, for `status`.
#[derive(Default)]
pub struct UploadProgress {
    pub segments: AtomicU64,
    pub bytes: AtomicU64,
    /// Failed tries since the last success.
    pub failures: AtomicU64,
    pub last_error: std::sync::Mutex<Option<String>>,
    /// What the store acknowledged.
    pub uploads: Uploads,
    /// What the line takes.
    pub uplink: Uplink,
    /// Whether others wait for what is being uploaded.
    pub urgency: Urgency,
}

/// Packs the objects of one checkpoint.
pub struct Packer {
    context: PackerContext,
    birth: Version,
    open: Option<(SegmentBuilder, Arc<ObjectSealer>)>,
    uploads: VecDeque<Task<()>>,
    /// What packing changed of the live bytes of segments.
    usage: UsageChanges,
    /// Of which of the usage map and the manifest there are objects in what is not in the store yet.
    unfinished_maps: BTreeSet<u64>,
}

/// One object to seal.
pub struct ToPack {
    pub kind: Kind,
    pub place: Place,
    pub plain: Bytes,
    pub children: Vec<Child>,
    pub payload: Bytes,
}

impl Packer {
    pub fn new(context: PackerContext, birth: Version) -> Self {
        Self {
            context,
            birth,
            open: None,
            uploads: VecDeque::new(),
            usage: UsageChanges::default(),
            unfinished_maps: BTreeSet::new(),
        }
    }

    /// What the trees that are being packed no longer hold.
    pub fn usage(&mut self) -> &mut UsageChanges {
        &mut self.usage
    }

    /// Takes all that was packed and released since the last time.
    pub fn take_usage(&mut self) -> UsageChanges {
        std::mem::take(&mut self.usage)
    }

    pub fn objects(&self) -> &Objects {
        &self.context.objects
    }

    /// What it packs for, and into which store.
    pub fn context(&self) -> &PackerContext {
        &self.context
    }

    pub fn writer(&self) -> WriterId {
        self.context.writer
    }

    /// The version that everything packed here is born in.
    pub fn birth(&self) -> Version {
        self.birth
    }

    /// Reads for as long as the store is out of reach: a checkpoint cannot go on without what it builds on, and the journal
    /// keeps everything meanwhile (I7).
    ///
    /// # Errors
    /// Whatever waiting does not mend.
    pub async fn patiently<T, F: Future<Output = Result<T, ReadError>>>(
        &self,
        mut read: impl FnMut() -> F,
    ) -> Result<T, ReadError> {
        loop {
            match read().await {
                Err(ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. }) => {
                    self.context.env.sleep(Duration::from_secs(2)).await
                }
                done @ (Ok(_) | Err(ReadError::Corrupt { .. } | ReadError::Missing { .. })) => return done,
            }
        }
    }

    fn sealer(&mut self) -> Arc<ObjectSealer> {
        if self.open.is_none() {
            let sequence = self.context.next_segment.fetch_add(1, Ordering::Relaxed);
            let id = SegmentId {
                writer: self.context.writer,
                sequence,
            };
            let entropy = self.context.env.random_bytes();
            let sealer = Arc::new(ObjectSealer::new(&self.context.keys, entropy, &id));
            self.open = Some((SegmentBuilder::new(self.context.family, id), sealer));
        }
        self.open.as_ref().expect("just opened").1.clone()
    }

    /// Seals and packs one object.
    ///
    /// # Errors
    /// If it cannot be sealed, or an upload before it failed for good.
    pub async fn pack(
        &mut self,
        kind: Kind,
        place: Place,
        plain: Bytes,
        children: Vec<Child>,
        payload: Bytes,
    ) -> Result<Pointer, CheckpointError> {
        let sealer = self.sealer();
        let slot = sealer.reserve_slot();
        let encoded = sealer.seal(
            slot,
            kind,
            place,
            self.birth,
            plain,
            children,
            &payload,
            self.context.compression,
        )?;
        self.push(encoded, payload).await
    }

    /// Seals and packs one object, and returns its sealed bytes as well.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub async fn pack_copied(&mut self, one: ToPack) -> Result<(Pointer, Bytes), CheckpointError> {
        let sealer = self.sealer();
        let encoded = sealer.seal(
            sealer.reserve_slot(),
            one.kind,
            one.place,
            self.birth,
            one.plain,
            one.children,
            &one.payload,
            self.context.compression,
        )?;
        let copy = encoded.bytes.clone();
        Ok((self.push(encoded, one.payload).await?, copy))
    }

    /// Seals many objects on the compute threads and packs them in the given order.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub async fn pack_all(&mut self, batch: Vec<ToPack>) -> Result<Vec<Pointer>, CheckpointError> {
        let sealer = self.sealer();
        let (birth, configured) = (self.birth, self.context.compression);
        let files = self.context.compressibility.clone();
        let sealed = self.context.env.compute(move || {
            batch
                .into_iter()
                .map(|one| {
                    let slot = sealer.reserve_slot();
                    let (is_block, inode) = (one.kind == Kind::Block, one.place.inode);
                    let compression = match configured {
                        Compression::Lz4 if is_block && !files.is_worth_trying(inode) => Compression::None,
                        configured => configured,
                    };
                    let encoded = sealer.seal(
                        slot,
                        one.kind,
                        one.place,
                        birth,
                        one.plain,
                        one.children,
                        &one.payload,
                        compression,
                    )?;
                    if is_block && compression != Compression::None {
                        files.tried(inode, encoded.header.seal.codec != Codec::Raw);
                    }
                    Ok((encoded, one.payload))
                })
                .collect::<Result<Vec<_>, firn_seal::SealError>>()
        });
        let mut pointers = Vec::new();
        for (encoded, payload) in sealed.await? {
            pointers.push(self.push(encoded, payload).await?);
        }
        Ok(pointers)
    }

    async fn push(&mut self, encoded: EncodedObject, payload: Bytes) -> Result<Pointer, CheckpointError> {
        self.sealer();
        let (builder, _) = self.open.as_mut().expect("just opened");
        let location = builder.push(&encoded);
        self.usage.add(encoded.header.place, location);
        if matches!(encoded.header.place.inode, USAGE_MAP | MANIFEST) {
            self.unfinished_maps.insert(encoded.header.place.inode);
        }
        let full = builder.bytes_used() as u64 >= self.context.segment_bytes;
        let pointer = Pointer {
            uid: encoded.uid,
            location,
        };
        self.context.objects.insert_sealed(
            &pointer,
            encoded.seal_tag(),
            Arc::new(Object {
                header: encoded.header,
                payload,
            }),
        );
        if full {
            self.upload_open().await?;
        }
        Ok(pointer)
    }

    async fn upload_open(&mut self) -> Result<(), CheckpointError> {
        let Some((builder, _)) = self.open.take() else {
            return Ok(());
        };
        while self.uploads.len() >= self.context.uploads_max
            && let Some(oldest) = self.uploads.pop_front()
        {
            oldest.await?;
        }
        let id = builder.id();
        let parts = builder.finish();
        self.note_finished(id, &parts).await;
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        wait_for_room(&self.context, bytes).await;
        self.context.progress.urgency.pinned(bytes);
        let context = self.context.clone();
        self.uploads.push_back(
            self.context
                .env
                .spawn("checkpoint.upload", upload(context, id, parts)),
        );
        Ok(())
    }

    /// Has the manifest know what is in a segment: what is put, whatever the store makes of it.
    async fn note_finished(&self, segment: SegmentId, parts: &[Bytes]) {
        let finished = &self.context.finished;
        if !finished.is_wanted() {
            return;
        }
        let mut hashed = parts.to_vec();
        if firn_env::planted!("volume.manifest_hashes_other_bytes") {
            hashed.remove(0);
        }
        let birth = self.birth;
        let entry = self
            .context
            .env
            .compute(move || ManifestEntry::of_parts(&hashed, birth));
        let entry = entry.await;
        finished.note(ListedSegment { segment, entry });
    }

    /// Makes objects of this map, the usage map or the manifest, readable that were packed a moment ago, by a merge or a rekey: whoever asks the store
    /// for what is not uploaded yet waits as for what the store shows late, and takes it for lost. Each asks for its own alone: what the
    /// checkpoint has just packed of the other would be a segment of its own for nothing.
    ///
    /// # Errors
    /// If an upload task died.
    pub async fn finish_map(&mut self, inode: u64) -> Result<(), CheckpointError> {
        match self.unfinished_maps.contains(&inode) {
            true => self.finish().await,
            false => Ok(()),
        }
    }

    /// Uploads what is left and waits until every segment is acknowledged by the store (level 2), and pinned until it was read back.
    ///
    /// # Errors
    /// If an upload task died.
    pub async fn finish(&mut self) -> Result<(), CheckpointError> {
        self.upload_open().await?;
        while let Some(upload) = self.uploads.pop_front() {
            upload.await?;
        }
        self.unfinished_maps.clear();
        self.context.objects.sync_pins().await;
        Ok(())
    }
}

/// Stores one segment, trying for as long as it takes: the data is safe in the journal meanwhile (I7).
async fn upload(context: PackerContext, id: SegmentId, parts: Vec<Bytes>) {
    let key = ObjectKey::new(&id.key(&context.family));
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    let (mut tries, mut foreign) = (0, false);
    context.env.fault_point("checkpoint.before_upload").await;
    // Before the root that needs it is committed, and the journal trimmed.
    context.objects.pin(id, &parts).await;
    let tail = tail_of(&parts);
    loop {
        let on_its_way = context.progress.uplink.begin(&context.env, bytes);
        match context.store.put(&key, parts.clone(), PutMode::Create).await {
            Ok(()) => {
                on_its_way.arrived();
                break;
            }
            // The name is new with this incarnation of the writer, so an earlier try of ours put it: but perhaps not whole.
            Err(StoreError::AlreadyExists { .. }) => {
                foreign = matches!(compare(&context, id, bytes, &tail).await, Ok(Found::Others))
                    && !firn_env::planted!("volume.any_existing_name_is_ours");
                break;
            }
            Err(error) => {
                let failures = context.progress.failures.fetch_add(1, Ordering::Relaxed) + 1;
                if failures == 1 || failures.is_power_of_two() {
                    tracing::warn!(%key, %error, failures, "segment not uploaded yet; its data is safe in the journal");
                }
                *context
                    .progress
                    .last_error
                    .lock()
                    .expect("no panic under this lock") = Some(error.to_string());
                tries += 1;
                UPLOAD_BACKOFF.wait(&context.env, tries).await;
            }
        }
    }
    context.env.fault_point("checkpoint.after_upload").await;
    context.progress.failures.store(0, Ordering::Relaxed);
    *context
        .progress
        .last_error
        .lock()
        .expect("no panic under this lock") = None;
    context.progress.uploads.note(id, bytes, tail, context.env.now());
    if foreign {
        tracing::error!(%key, "the store has other bytes under the name of a new segment; they are read from the local disk");
        // Whoever asks for level 2 is told, from now on.
        context.progress.uploads.look_again(id, context.env.now(), true);
    }
    context.progress.segments.fetch_add(1, Ordering::Relaxed);
    context.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    context.objects.insert_segment(id, &parts).await;
}
