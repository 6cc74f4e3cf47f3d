//! After a merge: what is in memory forgets the old places.

use crate::{
    checkpoint::Packer,
    checkpointer::CheckpointerState,
    objects::{Objects, ReadError},
    state::Content,
    tree,
    tree_diff::map_of,
    volume::Inner,
};
use firn_format::{INODE_MAP, ORPHAN_MAP, Place, TreeRoot};

/// After a step was committed: what is in memory forgets the old places, so that nothing built on it brings them back.
///
/// What cannot be read keeps its old place: a damaged inode is read through forwarding records or not at all.
pub(crate) async fn forget_old_places(inner: &Inner, packer: &Packer, own: &CheckpointerState) {
    let (inode_map, held) = {
        let mut state = inner.lock();
        state.drop_clean();
        (state.inode_map, state.contents())
    };
    let Some(inode_map) = inode_map else { return };
    for (number, before) in held {
        let found = packer
            .patiently(|| committed_content(&inner.objects, own, &inode_map, number))
            .await;
        match found {
            Ok(Some(content)) => inner.lock().replace_content(number, &before, content),
            // Removed, or never committed.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(inode = number, %error, "a file's new place is not known; its old one is used");
            }
        }
    }
}

/// Where the committed content of an inode is, if that has a map.
async fn committed_content(
    objects: &Objects,
    own: &CheckpointerState,
    inode_map: &TreeRoot,
    number: u64,
) -> Result<Option<Content>, ReadError> {
    let (inode, pointer) = match own.orphan_pointers.get(&number) {
        Some(pointer) => (ORPHAN_MAP, Some(*pointer)),
        None => {
            let found = tree::lookup(objects, INODE_MAP, inode_map, number).await?;
            (INODE_MAP, found)
        }
    };
    let Some(pointer) = pointer else {
        return Ok(None);
    };
    let place = Place {
        inode,
        level: 0,
        index: number,
    };
    let object = objects.get(&pointer, place).await?;
    Ok(map_of(&object).map(Content::Map))
}
