//! Read-back of uploads: each segment's end is read from the store a minute after it was put, and compared (read-after-write
//! verification).
//!
//! A store can acknowledge a put and drop it, or keep other bytes. A listing shows names and lengths, at the moment of the put; what
//! a gateway's dying cache lost is not there a minute later. So the segment stays pinned on the local disk until its end was read:
//!
//! ```text
//! put ─ 60 s ─ last 1 KiB read ─ ours ───────────────────────────────→ unpinned, nothing is asked any more
//!                              ├ absent ─ retired by a cleaner ──────→ unpinned
//!                              │        ├ put again from the pin ────→ read after another 60 s
//!                              │        └ no copy here ──────────────→ lost: said and counted
//!                              ├ others (three times) ─ retired ─────→ unpinned: its objects were written anew, see below
//!                              │                      └ not yet ─────→ altered: said, counted, read from the pin, looked at again
//!                              └ no answer ──────────────────────────→ later
//! ```
//!
//! The end is the footer, which has the checksums of header, objects and index and which a torn or foreign object has not, and as
//! much of the index as fits. **Price**: a GET is 8 % of a PUT, and 1 KiB of traffic at most 2 %; a whole index would be 16 %.
//!
//! What is altered is not put again: nothing is ever put under an old name. Who may retire segments relocates its objects, with the pin as
//! the source of their bytes ([`crate::Volume::altered_segments`]).
//!
//! Pins survive restarts ([`crate::objects`]), so what an earlier run put is read back by this one. A volume that is idle is asked
//! about until all was read, which takes a minute, and then not any more (I9).

use super::{
    PackerContext,
    confirm::{is_retired, put_again},
    uploads::Unread,
};
use crate::volume::Inner;
use bytes::Bytes;
use firn_env::Backoff;
use firn_format::SegmentId;
use firn_store::{ObjectKey, StoreError};
use futures::future::{Either, join_all, select};
use std::{sync::Arc, time::Duration};

/// From a put to the look: what a store holds in memory only, it has written or lost by then.
pub(super) const READ_BACK_DELAY: Duration = Duration::from_secs(60);

/// See the module.
const TAIL_BYTES: u64 = 1024;

/// GETs at one time: at 50 ms each, 160 a second, several times what an edge uploads.
const SIDE_BY_SIDE: usize = 8;

/// Looked at in one round.
const ROUND: usize = 64;

/// Looks that must agree before bytes are called altered: what travels may be damaged on its way.
const READS: u32 = 3;

/// Between looks at what the store does not answer for, or has altered.
const LOOK_AGAIN: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300)).without_jitter();

/// While the packer waits for pins to go.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// The hash of a segment's last bytes.
pub(super) type Tail = [u8; 32];

/// The end of a segment, given in parts.
pub(super) fn tail_of(parts: &[Bytes]) -> Tail {
    let mut left = TAIL_BYTES as usize;
    let mut ends = Vec::new();
    for part in parts.iter().rev() {
        let taken = part.len().min(left);
        ends.push(part.slice(part.len() - taken..));
        left -= taken;
        if left == 0 {
            break;
        }
    }
    let mut hasher = blake3::Hasher::new();
    for end in ends.iter().rev() {
        hasher.update(end);
    }
    *hasher.finalize().as_bytes()
}

/// Reads back until the volume stops serving, beginning with what an earlier run left.
pub(crate) async fn run(inner: Arc<Inner>) {
    let context = &inner.checkpointer.packer;
    note_pinned(context).await;
    let work = async {
        loop {
            let noted = context.progress.uploads.noted();
            futures::pin_mut!(noted);
            noted.as_mut().enable();
            let Some(due) = context.progress.uploads.next_due() else {
                noted.await;
                continue;
            };
            let wait = due.since(context.env.now());
            if !wait.is_zero() {
                // What is noted meanwhile is due later.
                context.env.sleep(wait).await;
            }
            round(context).await;
        }
    };
    futures::pin_mut!(work);
    let ended = inner.serving.ended();
    futures::pin_mut!(ended);
    match select(ended, work).await {
        Either::Left(_) | Either::Right(_) => {}
    }
}

/// Has everything read back that is pinned and that nobody waits to read back.
async fn note_pinned(context: &PackerContext) {
    let uploads = &context.progress.uploads;
    for (id, bytes) in context.objects.pinned_segments() {
        if uploads.is_unread(id) {
            continue;
        }
        if let Some(tail) = context.objects.pinned_tail(id, TAIL_BYTES).await {
            uploads.note_unread(id, bytes, tail_of(&[tail]), context.env.now());
        }
    }
}

/// Waits until so many bytes more may be pinned: a store that does not let itself be read back holds uploads, then the journal, then
/// writers (I7). It may become urgent meanwhile.
pub(super) async fn wait_for_room(context: &PackerContext, bytes: u64) {
    let has_room = || context.objects.may_pin(bytes, context.progress.urgency.share());
    while !has_room() {
        note_pinned(context).await;
        round(context).await;
        if !has_room() {
            context.env.sleep(ROOM_RETRY).await;
        }
    }
}

/// Reads back what is due, a bounded part of it.
async fn round(context: &PackerContext) {
    let _one = context.progress.uploads.reading.lock().await;
    let due = context.progress.uploads.due(context.env.now(), ROUND);
    for some in due.chunks(SIDE_BY_SIDE) {
        join_all(some.iter().map(|(id, unread)| look(context, *id, unread))).await;
    }
}

/// What a look found.
#[derive(Debug)]
pub(super) enum Found {
    Ours,
    Absent,
    Others,
}

/// Whether the end of what has this name is the end of what was put.
pub(super) async fn compare(
    context: &PackerContext,
    id: SegmentId,
    bytes: u64,
    tail: &Tail,
) -> Result<Found, StoreError> {
    let key = ObjectKey::new(&id.key(&context.family));
    let length = bytes.min(TAIL_BYTES);
    for _ in 0..READS {
        match context.store.get_range(&key, bytes - length, length).await {
            Ok(found) if tail_of(std::slice::from_ref(&found)) == *tail => return Ok(Found::Ours),
            // Shorter than what was put, or other bytes.
            Ok(_) | Err(StoreError::Invalid { .. }) => {}
            Err(StoreError::NotFound { .. }) => return Ok(Found::Absent),
            Err(error) => return Err(error),
        }
    }
    Ok(Found::Others)
}

async fn look(context: &PackerContext, id: SegmentId, unread: &Unread) {
    let uploads = &context.progress.uploads;
    let later = || context.env.now().after(LOOK_AGAIN.ceiling(unread.looks + 1));
    let found = match compare(context, id, unread.bytes, &unread.tail).await {
        _ if firn_env::planted!("volume.upload_not_read_back") => Ok(Found::Ours),
        Ok(found @ (Found::Absent | Found::Others)) => {
            match is_retired(&*context.store, &context.anchor, context.family, id).await {
                Ok(true) => Ok(Found::Ours),
                Ok(false) => Ok(found),
                Err(error) => Err(error),
            }
        }
        found @ (Ok(Found::Ours) | Err(_)) => found,
    };
    let put = match found {
        Ok(Found::Ours) => {
            uploads.seen(id);
            return context.objects.unpin(id).await;
        }
        Ok(Found::Others) => {
            if !unread.altered {
                let key = id.key(&context.family);
                tracing::error!(
                    key,
                    "the store acknowledged this segment and has other bytes under its name; it is read from the local disk, which must not be lost"
                );
            }
            return uploads.look_again(id, later(), true);
        }
        Ok(Found::Absent) => put_again(context, id, unread.bytes).await,
        Err(error) => Err(error),
    };
    match put {
        Ok(true) => uploads.was_put_again(id, context.env.now()),
        Ok(false) => {
            uploads.lose(id, unread.bytes);
            if let Some(lost) = uploads.lost(&context.family) {
                tracing::error!(count = lost.count, first = lost.keys.first(), "{lost}");
            }
        }
        Err(error) => {
            tracing::debug!(%error, %id, "not read back yet");
            uploads.look_again(id, later(), unread.altered);
        }
    }
}
