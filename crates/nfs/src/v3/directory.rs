//! READDIR and READDIRPLUS.
//!
//! A client says how many bytes it takes, in two currencies: the whole result as it is on the wire, and (READDIRPLUS) the
//! part without attributes and handles. Both are kept to the byte: entries are counted as they will be encoded before
//! they are taken.
//!
//! Cookies come from the volume and stay valid for ever, whatever happens to the directory, so there is nothing a cookie
//! verifier would have to guard: it is always zero, and any other one was not given out by this server.

use super::{
    Call, NfsProgram, Status, Target,
    crossing::Across,
    refused,
    types::{
        DirectoryEntry, DirectoryEntryPlus, DirectoryList, DirectoryListPlus, Failed, FileAttributes,
        ReadDirectoryCall, ReadDirectoryPlusCall, Verifier, WireName,
    },
};
use firn_vfs::{Attributes, FileKind, VfsError};

const VERIFIER: Verifier = [0; 8];
/// A result without entries: attributes with their flag, verifier, end of list, end of directory.
const EMPTY_RESULT_BYTES: usize = 4 + FILE_ATTRIBUTES_BYTES + 8 + 4 + 4;
/// fattr3.
const FILE_ATTRIBUTES_BYTES: usize = 84;
/// An entry without its name's bytes: list flag, inode, length of the name, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Attributes and a handle with their flags, and the handle's length.
const PLUS_BYTES: usize = 4 + FILE_ATTRIBUTES_BYTES + 4 + 4;
/// For the estimate of how many entries to ask the volume for.
const TYPICAL_NAME_BYTES: usize = 20;
/// Pages asked of the volume for one reply. A volume that gives few at a time makes short replies, not long waits.
const PAGES_MAX: usize = 16;

type OrAttributes<S> = Result<S, Failed<Option<FileAttributes>>>;

/// What the client still takes.
#[derive(Clone, Copy, Debug)]
struct Room {
    result_bytes: usize,
    names_bytes: usize,
}

/// What was found: entries that fit, the directory, whether it ends with them.
struct Listing {
    entries: Vec<firn_vfs::DirectoryEntry>,
    directory: firn_vfs::Attributes,
    end: bool,
}

impl Room {
    /// Room for `result_bytes` of which the empty result takes its part.
    fn new(result_bytes: u32, names_bytes: u32) -> Option<Self> {
        Some(Self {
            result_bytes: (result_bytes as usize).checked_sub(EMPTY_RESULT_BYTES)?,
            names_bytes: names_bytes as usize,
        })
    }

    /// Takes the room of an entry, if there is enough.
    fn take(&mut self, entry: &firn_vfs::DirectoryEntry, handle_bytes: Option<usize>) -> bool {
        let name = ENTRY_BYTES + entry.name.len().next_multiple_of(4);
        let plus = match handle_bytes {
            None => 0,
            Some(_) if entry.attributes.is_none() => 4 + 4,
            Some(bytes) => PLUS_BYTES + bytes.next_multiple_of(4),
        };
        if name + plus > self.result_bytes || name > self.names_bytes {
            return false;
        }
        self.result_bytes -= name + plus;
        self.names_bytes -= name;
        true
    }

    /// How many more entries may fit.
    fn estimate(&self, handle_bytes: Option<usize>) -> u32 {
        let name = ENTRY_BYTES + TYPICAL_NAME_BYTES;
        let whole = name + handle_bytes.map_or(0, |bytes| PLUS_BYTES + bytes);
        let entries = (self.result_bytes / whole).min(self.names_bytes / name);
        // At least one: it may be shorter than the typical one. Results are bounded, so this fits 32 bits.
        entries.max(1) as u32
    }
}

impl NfsProgram {
    pub(super) async fn read_directory(
        &self,
        call: &Call,
        asked: ReadDirectoryCall,
    ) -> OrAttributes<DirectoryList> {
        let directory = self.target(call, &asked.directory).map_err(refused)?;
        let count = asked.count.min(self.io_max_bytes);
        let room = Room::new(count, count);
        match list(&directory, asked.cookie, asked.verifier, room, None).await {
            Ok(listing) => Ok(DirectoryList {
                attributes: Some((&listing.directory).into()),
                verifier: VERIFIER,
                entries: listing
                    .entries
                    .into_iter()
                    .map(|entry| DirectoryEntry {
                        inode: entry.handle.inode,
                        name: WireName::from(entry.name),
                        cookie: entry.cookie,
                    })
                    .collect(),
                end: listing.end,
            }),
            Err(status) => Err(directory.refused(status).await),
        }
    }

    pub(super) async fn read_directory_plus(
        &self,
        call: &Call,
        asked: ReadDirectoryPlusCall,
    ) -> OrAttributes<DirectoryListPlus> {
        let directory = self.target(call, &asked.directory).map_err(refused)?;
        let room = Room::new(asked.maximum_count.min(self.io_max_bytes), asked.directory_count);
        let handle_bytes = asked.directory.0.len();
        let listed = async {
            let listing = list(&directory, asked.cookie, asked.verifier, room, Some(handle_bytes)).await?;
            Ok::<_, Status>((listing, self.places(call, &directory).await?))
        };
        match listed.await {
            Ok((listing, mut places)) => Ok(DirectoryListPlus {
                attributes: Some((&listing.directory).into()),
                verifier: VERIFIER,
                entries: listing
                    .entries
                    .into_iter()
                    .map(|entry| {
                        let is_directory = |attributes: &Attributes| attributes.kind == FileKind::Directory;
                        match places.remove(&entry.name[..]) {
                            Some(shown) if entry.attributes.as_ref().is_some_and(is_directory) => {
                                place_plus(entry, shown)
                            }
                            _ => self.entry_plus(&directory, entry),
                        }
                    })
                    .collect(),
                end: listing.end,
            }),
            Err(status) => Err(directory.refused(status).await),
        }
    }

    /// A file that was removed since it was listed has no attributes and gets no handle.
    fn entry_plus(&self, directory: &Target, entry: firn_vfs::DirectoryEntry) -> DirectoryEntryPlus {
        let export = &directory.admitted.export;
        let handle = entry
            .attributes
            .is_some()
            .then(|| self.exports.sign(export, entry.handle));
        DirectoryEntryPlus {
            inode: entry.handle.inode,
            name: WireName::from(entry.name),
            cookie: entry.cookie,
            attributes: entry.attributes.as_ref().map(Into::into),
            handle,
        }
    }
}

/// A junction under the number of the directory that it hides, with what it shows. Never longer than that directory's entry.
fn place_plus(entry: firn_vfs::DirectoryEntry, shown: Option<Across>) -> DirectoryEntryPlus {
    let (handle, attributes) = shown.unzip();
    DirectoryEntryPlus {
        inode: entry.handle.inode,
        name: WireName::from(entry.name),
        cookie: entry.cookie,
        attributes: attributes.as_ref().map(Into::into),
        handle,
    }
}

/// Entries behind `cookie` as long as there is room. `handle_bytes` is the length of a handle if attributes and handles
/// are wanted (all of ours have one length).
async fn list(
    directory: &Target,
    cookie: u64,
    verifier: Verifier,
    room: Option<Room>,
    handle_bytes: Option<usize>,
) -> Result<Listing, Status> {
    if cookie != 0 && verifier != VERIFIER {
        return Err(Status::BadCookie);
    }
    let mut room = room.ok_or(Status::TooSmall)?;
    let (vfs, caller, file) = (directory.vfs(), &directory.caller, directory.admitted.file);
    let plus = handle_bytes.is_some();
    let mut page = vfs
        .read_directory(caller, file, cookie, room.estimate(handle_bytes), plus)
        .await?;
    let mut entries: Vec<firn_vfs::DirectoryEntry> = Vec::new();
    for _ in 0..PAGES_MAX {
        for entry in std::mem::take(&mut page.entries) {
            if !room.take(&entry, handle_bytes) {
                if entries.is_empty() {
                    return Err(Status::TooSmall);
                }
                let directory = page.directory;
                return Ok(Listing {
                    entries,
                    directory,
                    end: false,
                });
            }
            entries.push(entry);
        }
        if page.end {
            break;
        }
        let Some(last) = entries.last() else {
            // Neither entries nor the end: the client would ask for the same for ever.
            return Err(VfsError::Io("a directory page is empty but not the last".into()).into());
        };
        match vfs
            .read_directory(caller, file, last.cookie, room.estimate(handle_bytes), plus)
            .await
        {
            Ok(next) => page = next,
            // What there is, is good; the error will come again when it is asked for what follows.
            Err(_) => break,
        }
    }
    Ok(Listing {
        end: page.end && page.entries.is_empty(),
        entries,
        directory: page.directory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        v3::types::Time,
        xdr::{Encode, Encoder},
    };

    fn encoded_len(value: &impl Encode) -> usize {
        let mut out = Encoder::new();
        value.encode(&mut out);
        out.len()
    }

    fn attributes() -> FileAttributes {
        let time = Time {
            seconds: 1,
            nanoseconds: 1,
        };
        FileAttributes {
            kind: crate::v3::types::FileType::Regular,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            device: crate::v3::types::Device { major: 0, minor: 0 },
            file_system: 0,
            inode: 1,
            accessed: time,
            modified: time,
            changed: time,
        }
    }

    #[test]
    fn the_sizes_counted_are_those_encoded() {
        let mut list = DirectoryListPlus {
            attributes: Some(attributes()),
            verifier: VERIFIER,
            entries: Vec::new(),
            end: true,
        };
        assert_eq!(encoded_len(&list), EMPTY_RESULT_BYTES);
        for (name, handle) in [("a", Some(44)), ("abcd", Some(44)), ("abcdefghi", None)] {
            list.entries.push(DirectoryEntryPlus {
                inode: 1,
                name: name.into(),
                cookie: 1,
                attributes: handle.map(|_| attributes()),
                handle: handle.map(|bytes| bytes::Bytes::from(vec![0; bytes]).into()),
            });
        }
        let with_handle = |name: usize| ENTRY_BYTES + name + PLUS_BYTES + 44;
        let counted = EMPTY_RESULT_BYTES + with_handle(4) + with_handle(4) + (ENTRY_BYTES + 12 + 8);
        assert_eq!(encoded_len(&list), counted);
    }
}
