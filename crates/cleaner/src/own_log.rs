//! The cleaner's own log: where moved objects go.
//!
//! A run takes a writer incarnation of its own the first time it writes something, and ends it when it is done. What it wrote
//! and did not come to retire anything for is then garbage like that of any writer that is over.

use crate::CleanError;
use firn_anchor::{Anchor, TupleVersion, WriterTenure};
use firn_env::Env;
use firn_format::{
    EncodedObject, INDEX_ENTRY_BYTES, ListedSegment, Location, MAX_SEGMENT_BYTES, ManifestEntry,
    SegmentBuilder, SegmentId, Version, WriterId,
};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use std::sync::Arc;

pub(crate) struct OwnLog {
    env: Env,
    store: Arc<dyn Store>,
    anchor: Anchor,
    segment_bytes: usize,
    writer: Option<(WriterId, TupleVersion)>,
    next_sequence: u64,
    open: Option<SegmentBuilder>,
    /// Bytes put so far.
    pub written_bytes: u64,
    /// Segments put since the last retirement, for manifests.
    written: Vec<ListedSegment>,
}

impl OwnLog {
    pub fn new(env: &Env, store: Arc<dyn Store>, anchor: &Anchor, segment_bytes: usize) -> Self {
        Self {
            env: env.clone(),
            store,
            anchor: anchor.clone(),
            segment_bytes,
            writer: None,
            next_sequence: 0,
            open: None,
            written_bytes: 0,
            written: Vec::new(),
        }
    }

    /// This run's incarnation, drawn now if it has none yet.
    pub async fn writer(&mut self) -> Result<(WriterId, TupleVersion), CleanError> {
        if let Some(writer) = self.writer {
            return Ok(writer);
        }
        let writer = self.anchor.next_writer_for(WriterTenure::Cleaner).await?;
        let Some((_, version)) = self.anchor.writer(writer).await? else {
            return Err(CleanError::Foreign {
                key: format!("writer {writer}"),
            });
        };
        self.writer = Some((writer, version));
        Ok((writer, version))
    }

    /// Adds an object and tells where it will lie.
    pub async fn push(&mut self, object: &EncodedObject) -> Result<Location, CleanError> {
        let room = self.segment_bytes.min(MAX_SEGMENT_BYTES);
        let needed = object.bytes.len() + INDEX_ENTRY_BYTES;
        if let Some(open) = &self.open
            && open.bytes_used() + needed > room
            && !open.objects().is_empty()
        {
            self.put_open().await?;
        }
        if self.open.is_none() {
            let (writer, _) = self.writer().await?;
            let id = SegmentId {
                writer,
                sequence: self.next_sequence,
            };
            self.next_sequence += 1;
            self.open = Some(SegmentBuilder::new(self.anchor.family(), id));
        }
        let open = self.open.as_mut().expect("just opened");
        Ok(open.push(object))
    }

    /// The segments that were put since the last call.
    pub fn take_written(&mut self) -> Vec<ListedSegment> {
        std::mem::take(&mut self.written)
    }

    /// Makes everything pushed so far durable.
    pub async fn finish(&mut self) -> Result<(), CleanError> {
        self.put_open().await
    }

    async fn put_open(&mut self) -> Result<(), CleanError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        self.env.fault_point("cleaner.before_copy").await;
        let segment = open.id();
        let key = ObjectKey::new(&segment.key(&self.anchor.family()));
        let parts = open.finish();
        let hashed = parts.clone();
        let entry = self
            .env
            .compute(move || ManifestEntry::of_parts(&hashed, Version(0)))
            .await;
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.put_once(&key, parts).await?;
        self.written_bytes += bytes;
        self.written.push(ListedSegment { segment, entry });
        self.env.fault_point("cleaner.after_copy").await;
        Ok(())
    }

    /// Puts under a name that only this run gives away: what is there already is ours, put by a try whose reply was lost.
    pub async fn put_once(&self, key: &ObjectKey, parts: Vec<bytes::Bytes>) -> Result<(), CleanError> {
        match self.store.put(key, parts.clone(), PutMode::Create).await {
            Ok(()) => Ok(()),
            Err(StoreError::AlreadyExists { .. }) if self.store.get(key).await? == parts.concat() => Ok(()),
            Err(StoreError::AlreadyExists { .. }) => Err(CleanError::Foreign { key: key.to_string() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the incarnation, if there is one: what was not retired for is garbage now.
    pub async fn end(&mut self) -> Result<(), CleanError> {
        if let Some((writer, _)) = self.writer.take() {
            self.anchor.end_writer(writer).await?;
        }
        Ok(())
    }
}
