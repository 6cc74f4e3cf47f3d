//! The persistent state of a rekey, in the sealed part of each checkpoint.

use crate::codec::{DecodeError, Decoder, Encoder};
use firn_format::{KeyEpoch, Version};

/// Rekeys that are remembered as done, for the snapshots made since: a rotation a month for five years.
const CLEAN_MAX: usize = 64;

/// From this version on the volume's trees hold nothing sealed under an older epoch than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanSince {
    /// The epoch.
    pub epoch: KeyEpoch,
    /// The first version.
    pub version: Version,
}

/// What a rekey met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RekeyCounts {
    /// Objects sealed anew.
    pub resealed_objects: u64,
    /// Their sealed bytes, as they were.
    pub resealed_bytes: u64,
    /// Data that it has passed, opened: resealed, or already under the newest key.
    pub passed_bytes: u64,
    /// Objects that the store lost or altered: they stay as they are.
    pub unreadable: u64,
}

/// A rekey that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// What is sealed under an older epoch is sealed anew.
    pub target: KeyEpoch,
    /// How much it may move.
    pub bytes_per_second: u64,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: i64,
    /// What it did.
    pub counts: RekeyCounts,
    pub(crate) cursor: Cursor,
}

/// Where the walk goes on: everything before is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub tree: Tree,
    /// The leaf of that tree: an inode's number in the first two.
    pub leaf: u64,
    /// The block of the inode's map.
    pub block: u64,
}

/// The trees, in the order in which they are gone through. What is unlinked while it is open goes from the first to the second and
/// never back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tree {
    #[default]
    Inodes = 0,
    Orphans = 1,
    Usage = 2,
    /// Of volumes that have a manifest.
    Manifest = 3,
}

/// How a rekey ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RekeyEnd {
    /// Nothing older is left in the live tree.
    Done = 0,
    /// An administrator stopped it.
    Stopped = 1,
    /// It came to its end, but something could not be read.
    Unreadable = 2,
}

/// The rekey that ended last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRekey {
    /// Its target.
    pub target: KeyEpoch,
    /// When, in milliseconds since 1970.
    pub ended_ms: i64,
    /// How.
    pub end: RekeyEnd,
    /// What it did.
    pub counts: RekeyCounts,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RekeyState {
    /// Rising in both; at most [`CLEAN_MAX`].
    pub(crate) clean: Vec<CleanSince>,
    /// The one that is under way.
    pub under_way: Option<UnderWay>,
    /// The one before.
    pub last: Option<LastRekey>,
}

impl RekeyState {
    /// Of trees that hold nothing older than `epoch`.
    pub(crate) fn clean_from(epoch: KeyEpoch, version: Version) -> Self {
        Self {
            clean: vec![CleanSince { epoch, version }],
            ..Self::default()
        }
    }

    /// The oldest epoch that the live tree may need.
    pub(crate) fn oldest(&self) -> Option<KeyEpoch> {
        self.clean.last().map(|clean| clean.epoch)
    }

    /// The oldest epoch that the tree of a version may need.
    pub(crate) fn oldest_at(&self, version: Version) -> Option<KeyEpoch> {
        let known = self.clean.iter().rev().find(|clean| clean.version <= version);
        known.map(|clean| clean.epoch)
    }

    pub(crate) fn note_clean(&mut self, clean: CleanSince) {
        if self.clean.len() >= CLEAN_MAX {
            self.clean.remove(0);
        }
        self.clean.push(clean);
    }

    pub(crate) fn start(&mut self, newest: KeyEpoch, bytes_per_second: u64, now_ms: i64) {
        let is_clean = self.oldest() >= Some(newest);
        match &mut self.under_way {
            Some(under_way) => under_way.bytes_per_second = bytes_per_second,
            None if is_clean => {}
            None => {
                self.under_way = Some(UnderWay {
                    target: newest,
                    bytes_per_second,
                    started_ms: now_ms,
                    counts: RekeyCounts::default(),
                    cursor: Cursor::default(),
                });
            }
        }
    }

    pub(crate) fn stop(&mut self, now_ms: i64) {
        if let Some(stopped) = self.under_way.take() {
            self.last = Some(LastRekey {
                target: stopped.target,
                ended_ms: now_ms,
                end: RekeyEnd::Stopped,
                counts: stopped.counts,
            });
        }
    }

    /// A key came that is newer than the target: all begins anew, for what was sealed meanwhile is old now.
    pub(crate) fn follow(&mut self, newest: KeyEpoch) {
        if let Some(under_way) = &mut self.under_way
            && under_way.target < newest
        {
            under_way.target = newest;
            under_way.counts = RekeyCounts::default();
            under_way.cursor = Cursor::default();
        }
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u32(self.clean.len() as u32);
        for clean in &self.clean {
            out.u32(clean.epoch.0).u64(clean.version.0);
        }
        out.option(self.under_way.as_ref(), |out, under_way| {
            out.u32(under_way.target.0)
                .u64(under_way.bytes_per_second)
                .i64(under_way.started_ms);
            under_way.counts.encode(out);
            let Cursor { tree, leaf, block } = under_way.cursor;
            out.u8(tree as u8).u64(leaf).u64(block);
        });
        out.option(self.last.as_ref(), |out, last| {
            out.u32(last.target.0).i64(last.ended_ms).u8(last.end as u8);
            last.counts.encode(out);
        });
    }

    pub(crate) fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = input.count(12)?;
        if count > CLEAN_MAX {
            return Err(input.error());
        }
        let mut clean = Vec::with_capacity(count);
        for _ in 0..count {
            clean.push(CleanSince {
                epoch: KeyEpoch(input.u32()?),
                version: Version(input.u64()?),
            });
        }
        let under_way = input.option(|input| {
            Ok(UnderWay {
                target: KeyEpoch(input.u32()?),
                bytes_per_second: input.u64()?,
                started_ms: input.i64()?,
                counts: RekeyCounts::decode(input)?,
                cursor: Cursor {
                    tree: match input.u8()? {
                        0 => Tree::Inodes,
                        1 => Tree::Orphans,
                        2 => Tree::Usage,
                        3 => Tree::Manifest,
                        _ => return Err(input.error()),
                    },
                    leaf: input.u64()?,
                    block: input.u64()?,
                },
            })
        })?;
        let last = input.option(|input| {
            Ok(LastRekey {
                target: KeyEpoch(input.u32()?),
                ended_ms: input.i64()?,
                end: match input.u8()? {
                    0 => RekeyEnd::Done,
                    1 => RekeyEnd::Stopped,
                    2 => RekeyEnd::Unreadable,
                    _ => return Err(input.error()),
                },
                counts: RekeyCounts::decode(input)?,
            })
        })?;
        Ok(Self {
            clean,
            under_way,
            last,
        })
    }
}

impl RekeyCounts {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.resealed_objects)
            .u64(self.resealed_bytes)
            .u64(self.passed_bytes)
            .u64(self.unreadable);
    }

    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            resealed_objects: input.u64()?,
            resealed_bytes: input.u64()?,
            passed_bytes: input.u64()?,
            unreadable: input.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Encoder;

    fn started() -> RekeyState {
        let mut state = RekeyState::clean_from(KeyEpoch(1), Version(1));
        state.start(KeyEpoch(2), 1000, 5);
        state
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut state = started();
        state.under_way.as_mut().expect("started").cursor = Cursor {
            tree: Tree::Orphans,
            leaf: 7,
            block: 9,
        };
        state.last = Some(LastRekey {
            target: KeyEpoch(1),
            ended_ms: 3,
            end: RekeyEnd::Unreadable,
            counts: RekeyCounts {
                unreadable: 4,
                ..RekeyCounts::default()
            },
        });
        let mut out = Encoder::new(1);
        state.encode(&mut out);
        let bytes = out.finish();
        let mut input = Decoder::new(&bytes, 1, "a rekey").expect("a version");
        assert_eq!(RekeyState::decode(&mut input), Ok(state));
        assert_eq!(input.finish(), Ok(()));
    }

    #[test]
    fn two_starts_are_one_rekey_and_a_newer_key_begins_it_anew() {
        let mut state = started();
        state.under_way.as_mut().expect("started").cursor.leaf = 99;
        state.start(KeyEpoch(2), 2000, 6);
        let under_way = state.under_way.clone().expect("under way");
        assert_eq!(
            (
                under_way.cursor.leaf,
                under_way.bytes_per_second,
                under_way.started_ms
            ),
            (99, 2000, 5)
        );
        state.follow(KeyEpoch(3));
        let under_way = state.under_way.clone().expect("under way");
        assert_eq!(
            (under_way.cursor, under_way.target),
            (Cursor::default(), KeyEpoch(3))
        );
    }

    #[test]
    fn a_clean_tree_is_not_gone_through_again() {
        let mut state = RekeyState::clean_from(KeyEpoch(2), Version(1));
        state.start(KeyEpoch(2), 1000, 5);
        assert_eq!(state.under_way, None);
    }

    #[test]
    fn a_version_needs_what_the_last_rekey_before_it_left() {
        let mut state = RekeyState::clean_from(KeyEpoch(1), Version(1));
        state.note_clean(CleanSince {
            epoch: KeyEpoch(3),
            version: Version(10),
        });
        assert_eq!(state.oldest_at(Version(9)), Some(KeyEpoch(1)));
        assert_eq!(state.oldest_at(Version(10)), Some(KeyEpoch(3)));
        assert_eq!(RekeyState::default().oldest_at(Version(10)), None);
    }
}
