//! Directories.

use super::{Operations, Outcome, superuser};
use crate::{
    reply::{self, Listing, Reply, inode_number, kind_bits},
    request::Header,
};
use firn_vfs::DirectoryEntry;
use rustix::{fs::OFlags, io::Errno};
use std::sync::atomic::Ordering;

/// The least that an entry takes, so that no more are asked for than can fit.
const ENTRY_BYTES_MIN: u32 = 32;
const ENTRY_PLUS_BYTES_MIN: u32 = ENTRY_BYTES_MIN + 128;

impl Operations {
    /// smbd opens a directory without `O_DIRECTORY` only to ask for a name in whatever case. One that is too long for the question the
    /// kernel does not let through: smbd is told here that this directory does not answer, and lists it.
    pub(super) fn open_directory(&self, header: &Header, flags: u32) -> Outcome {
        if let Some(index) = self.case_index()
            && flags & OFlags::DIRECTORY.bits() == 0
            && index.take_long(header.pid, header.node)
        {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(Reply::Structure(reply::opened(0, 0)))
    }

    /// Entries after the cookie `offset`, as many as fit into `size`. `plus`: the kernel knows them from now on.
    pub(super) async fn read_directory(&self, node: u64, offset: u64, size: u32, plus: bool) -> Outcome {
        let directory = self.handle(node)?;
        self.listings.fetch_add(1, Ordering::Relaxed);
        let least = if plus {
            ENTRY_PLUS_BYTES_MIN
        } else {
            ENTRY_BYTES_MIN
        };
        let limit = (size / least).max(1);
        // Kinds of entries are attributes as well; stat would ask for them one by one.
        let page = self
            .vfs
            .read_directory(&superuser(), directory, offset, limit, true)
            .await?;
        let mut listing = Listing::new(size as usize);
        for entry in &page.entries {
            if !listing.fits(&entry.name, plus) {
                break;
            }
            self.add(&mut listing, entry, plus);
        }
        Ok(Reply::Structure(listing.finish()))
    }

    fn add(&self, listing: &mut Listing, entry: &DirectoryEntry, plus: bool) {
        let attributes = entry.attributes.as_ref();
        let inode = attributes.map_or(entry.handle.inode, |attributes| {
            inode_number(attributes, self.view.live_file_system)
        });
        // 0, unknown, for what was removed meanwhile.
        let kind = attributes.map_or(0, |attributes| kind_bits(attributes.kind));
        let is_dot = matches!(&entry.name[..], b"." | b"..");
        let known = plus.then(|| {
            let node = match attributes {
                Some(_) if !is_dot => self.nodes.look_up(entry.handle),
                _ => 0,
            };
            (node, attributes, self.view)
        });
        listing.add(&entry.name, entry.cookie, (inode, kind), known);
    }
}
