//! Takes out of the kernel's caches what others changed.
//!
//! The kernel does it while the notification is written, so an acknowledgement afterwards is the truth. It may have to wait for
//! requests of its own that we serve meanwhile; that is why this runs beside them.

use crate::{abi::notify, connection::Connection};
use bytes::{BufMut, Bytes, BytesMut};
use firn_env::Env;
use firn_session::{ChangeKind, Delivery, Watcher};
use rustix::io::Errno;
use std::sync::Arc;

/// Follows a watcher as long as the mount is served.
pub(crate) async fn follow(env: Env, connection: Arc<Connection>, watcher: Arc<Watcher>) {
    loop {
        let delivery = watcher.next().await;
        let connection = connection.clone();
        // Blocking, and the acknowledgement goes with the delivery.
        env.compute(move || match &delivery {
            Delivery::Change(change, _) => change.parts.iter().for_each(|part| invalidate(&connection, part)),
            Delivery::Rescan(_) => invalidate_all(&connection),
        })
        .await;
    }
}

fn invalidate(connection: &Connection, part: &ChangeKind) {
    if let (Some(index), ChangeKind::Entry { directory, name }) = (connection.operations().case_index(), part)
    {
        index.touched(*directory, name);
    }
    if let (Some(index), ChangeKind::Elsewhere(directory)) = (connection.operations().case_index(), part) {
        index.forget(*directory);
    }
    let nodes = connection.operations().nodes();
    let Some(node) = nodes.number(part.file()) else {
        return;
    };
    checked(match part {
        ChangeKind::Entry { name, .. } => {
            let mut body = BytesMut::with_capacity(16 + name.as_bytes().len() + 1);
            body.put_u64_le(node);
            body.put_u32_le(name.as_bytes().len() as u32);
            body.put_u32_le(0);
            body.put_slice(name.as_bytes());
            body.put_u8(0);
            connection.notify(notify::INVAL_ENTRY, &[body.freeze()])
        }
        ChangeKind::Attributes(_) => connection.notify(notify::INVAL_INODE, &[inode(node, -1)]),
        // Names of a directory live no longer than what the mount was told (`MountOptions::cached_for`).
        ChangeKind::Content(_) | ChangeKind::Elsewhere(_) => {
            connection.notify(notify::INVAL_INODE, &[inode(node, 0)])
        }
    });
}

/// Attributes of a node, and its pages from `offset` on; none if that is negative.
fn inode(node: u64, offset: i64) -> Bytes {
    let mut body = BytesMut::with_capacity(24);
    body.put_u64_le(node);
    body.put_i64_le(offset);
    body.put_i64_le(0);
    body.freeze()
}

fn invalidate_all(connection: &Connection) {
    if let Some(index) = connection.operations().case_index() {
        index.clear();
    }
    // Names at once where the kernel can; else they live no longer than the replies said.
    if let Err(error) = connection.notify(notify::INC_EPOCH, &[]) {
        tracing::debug!(%error, "this kernel cannot drop all names at once");
    }
    connection.operations().nodes().forget_pages();
    for node in connection.operations().nodes().numbers() {
        checked(connection.notify(notify::INVAL_INODE, &[inode(node, 0)]));
    }
}

fn checked(result: Result<(), Errno>) {
    match result {
        // It has it no more; or it is unmounted.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED | Errno::NOTCONN) => {}
        Err(error) => tracing::warn!(%error, "the kernel did not drop what changed"),
    }
}
