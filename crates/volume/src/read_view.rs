//! The read view of a tree, the live one or a snapshot's. Questions are asked of the state in memory; what it misses is loaded.

use crate::{
    journal::Journal,
    objects::{Objects, ReadError},
    read_ahead::ReadAhead,
    serving::Serving,
    state::{Content, DirectoryPage, Missing, PagePlace, State, Stop},
    tree,
};
use firn_format::{INODE_MAP, Place, Pointer};
use firn_vfs::{FileHandle, VfsError};
use std::sync::{Mutex, MutexGuard};

/// Loads before a request gives up: every load brings one thing into memory, and no request needs more than a handful; a
/// deep rename check needs one an ancestor.
pub(crate) const LOADS_MAX: usize = 100_000;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct ReadView<'a> {
    /// Names the tree to protocols.
    pub file_system: u64,
    pub state: &'a Mutex<State>,
    /// Has what was written since the last checkpoint; of a snapshot nothing.
    pub journal: &'a Journal,
    pub objects: &'a Objects,
    pub read_ahead: &'a ReadAhead,
    pub block_bytes: u64,
    pub serving: &'a Serving,
}

impl ReadView<'_> {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a panic under the state lock ends the process")
    }

    /// The inode a handle names, if the handle is of this tree.
    pub fn number(&self, handle: FileHandle) -> Result<u64, VfsError> {
        if handle.file_system == self.file_system {
            Ok(handle.inode)
        } else {
            Err(VfsError::Stale)
        }
    }

    /// Runs a question against the state, loading what it misses.
    pub async fn ask<T>(
        &self,
        mut question: impl FnMut(&mut State) -> Result<T, Stop>,
    ) -> Result<T, VfsError> {
        for _ in 0..LOADS_MAX {
            self.serving.check()?;
            let missing = match question(&mut self.lock()) {
                Ok(answer) => return Ok(answer),
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Missing(missing)) => missing,
            };
            self.load(missing).await?;
        }
        Err(VfsError::TryAgain {
            reason: "the memory cache is too small for this request",
        })
    }

    /// Loads what a request misses.
    pub async fn load(&self, missing: Missing) -> Result<(), VfsError> {
        match missing {
            Missing::Inode(number) => self.load_inode(number).await,
            Missing::Page { directory, key } => self.load_page(directory, key).await,
        }
    }

    async fn load_inode(&self, number: u64) -> Result<(), VfsError> {
        let root = self.lock().inode_map;
        let found = match &root {
            None => None,
            Some(root) => match tree::lookup(self.objects, INODE_MAP, root, number).await {
                Err(error) => return Err(inode_lost(number, error)),
                Ok(None) => None,
                Ok(Some(pointer)) => {
                    let place = Place {
                        inode: INODE_MAP,
                        level: 0,
                        index: number,
                    };
                    Some(read_inode(self.objects, &pointer, place).await?)
                }
            },
        };
        let mut state = self.lock();
        // A commit meanwhile may have changed the inode; what was read is then of no use, and the request asks again.
        if state.inode_map != root {
            return Ok(());
        }
        match found {
            Some((inode, content)) => {
                state.install_inode(number, inode, content);
                Ok(())
            }
            None => match state.inode(number) {
                Err(Missing::Inode(_)) => Err(VfsError::Stale),
                // Created or tombstoned while we looked.
                Ok(_) | Err(Missing::Page { .. }) => Ok(()),
            },
        }
    }

    async fn load_page(&self, directory: u64, key: u64) -> Result<(), VfsError> {
        let (content, shape) = {
            let mut state = self.lock();
            match state.entry(directory) {
                Err(_) => return Ok(()), // Dropped meanwhile: the request will miss the inode next.
                Ok(None) => return Err(VfsError::Stale),
                Ok(Some(entry)) => {
                    let inode = entry.inode.as_ref().expect("an entry that is no tombstone");
                    (entry.content.clone(), inode.directory)
                }
            }
        };
        match find_page(self.objects, directory, &content, shape, key).await {
            Err(error) => Err(read_failed(error)),
            Ok(Some((place, page))) => {
                self.lock().install_page(directory, &content, place, page);
                Ok(())
            }
            Ok(None) => {
                let mut state = self.lock();
                let unchanged = matches!(state.entry(directory), Ok(Some(entry)) if entry.content == content);
                if unchanged && state.page(directory, key).is_err() {
                    let detail = format!("no page of the directory covers key {key:016x}");
                    return Err(VfsError::Corrupt {
                        inode: directory,
                        detail,
                    });
                }
                Ok(())
            }
        }
    }
}

/// Finds and reads the committed page that covers `key`; `None` if there is none, which a whole directory never has.
pub(crate) async fn find_page(
    objects: &Objects,
    directory: u64,
    content: &Content,
    shape: crate::inode::DirectoryShape,
    key: u64,
) -> Result<Option<(PagePlace, DirectoryPage)>, ReadError> {
    let Content::Map(root) = content else {
        return Ok(None);
    };
    let deepest = shape.max_depth.min(crate::state::MAX_DEPTH);
    for depth in (0..=deepest).rev() {
        let place = PagePlace::covering(key, depth);
        let Some(pointer) = tree::lookup(objects, directory, root, place.index()).await? else {
            continue;
        };
        let at = Place {
            inode: directory,
            level: 0,
            index: place.index(),
        };
        let object = objects.get(&pointer, at).await?;
        return match DirectoryPage::decode(object.payload.clone(), place) {
            Ok(page) => Ok(Some((place, page))),
            Err(error) => {
                let (location, detail) = (pointer.location, error.to_string());
                Err(ReadError::Corrupt {
                    place: at,
                    location,
                    detail,
                })
            }
        };
    }
    Ok(None)
}

/// Reads and decodes an inode object.
pub(crate) async fn read_inode(
    objects: &Objects,
    pointer: &Pointer,
    place: Place,
) -> Result<(crate::inode::Inode, Content), VfsError> {
    let object = objects.get(pointer, place).await.map_err(read_failed)?;
    decode_inode(&object).map_err(|detail| VfsError::Corrupt {
        inode: place.index,
        detail,
    })
}

pub(crate) fn decode_inode(
    object: &crate::objects::Object,
) -> Result<(crate::inode::Inode, Content), String> {
    let (inode, inline) =
        crate::inode::Inode::decode(object.payload.clone()).map_err(|error| error.to_string())?;
    if inode.number != object.header.place.index {
        return Err(format!(
            "the object of inode {} says it is {}",
            object.header.place.index, inode.number
        ));
    }
    let content = match (
        inline,
        object.header.children.first(),
        object.header.plain.first(),
    ) {
        (Some(bytes), None, _) => Content::Inline(bytes),
        (None, Some(child), Some(level)) if *level > 0 => Content::Map(firn_format::TreeRoot {
            pointer: child.pointer,
            level: *level,
        }),
        (None, None, _) => Content::Empty,
        (Some(_), Some(_), _) | (None, Some(_), _) => {
            return Err("its content is neither inline nor a map".into());
        }
    };
    Ok((inode, content))
}

/// What the client is told when the way to an inode cannot be read: the damaged node belongs to no file, but this one is
/// behind it.
fn inode_lost(number: u64, error: ReadError) -> VfsError {
    match read_failed(error) {
        VfsError::Corrupt { detail, .. } => VfsError::Corrupt {
            inode: number,
            detail,
        },
        other => other,
    }
}

/// What the client is told when something committed cannot be read.
pub(crate) fn read_failed(error: ReadError) -> VfsError {
    match error {
        ReadError::Unavailable { .. } => VfsError::TryAgain {
            reason: "the object store is out of reach",
        },
        ReadError::KeyNotAtHand { .. } => VfsError::TryAgain {
            reason: "the key that it is sealed under is not in this edge's key ring yet",
        },
        ReadError::Corrupt { place, .. } => {
            let inode = if place.inode == INODE_MAP && place.level == 0 {
                place.index
            } else {
                place.inode
            };
            VfsError::Corrupt {
                inode,
                detail: error.to_string(),
            }
        }
        ReadError::Missing { .. } => VfsError::Io(error.to_string()),
    }
}
