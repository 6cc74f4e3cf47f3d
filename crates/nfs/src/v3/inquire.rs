//! Procedures that change nothing and read no data: GETATTR, LOOKUP, ACCESS, READLINK, FSSTAT, FSINFO, PATHCONF.

use super::{
    Call, NfsProgram, Status, Target,
    convert::{access_mask, wire_mask},
    refused,
    types::{
        ACCESS_DELETE, ACCESS_EXTEND, ACCESS_MODIFY, AccessCall, AccessGranted, Entry, Failed,
        FileAttributes, FileSystemInformation, FileSystemStatus, Found, LinkTarget, PROPERTY_CAN_SET_TIME,
        PROPERTY_HOMOGENEOUS, PROPERTY_LINKS, PROPERTY_SYMLINKS, PathConfiguration, Time,
    },
};
use crate::{handle::WireHandle, xdr::Opaque};
use firn_vfs::{Attributes, FileHandle, Name, VfsError};

/// What READDIR is best asked for: some 500 entries with attributes, in one reply that is still quick to make.
const DIRECTORY_PREFERRED_BYTES: u32 = 64 << 10;
/// Offsets and lengths in multiples of this avoid reading a block to change part of it.
const IO_MULTIPLE_BYTES: u32 = 4096;

type OrAttributes<S> = Result<S, Failed<Option<FileAttributes>>>;

impl NfsProgram {
    pub(super) async fn get_attributes(
        &self,
        call: &Call,
        file: WireHandle,
    ) -> Result<FileAttributes, Failed<()>> {
        let target = self.target(call, &file).map_err(refused)?;
        let attributes = target
            .vfs()
            .attributes(target.admitted.file)
            .await
            .map_err(refused)?;
        Ok((&attributes).into())
    }

    pub(super) async fn lookup(&self, call: &Call, at: Entry) -> OrAttributes<Found> {
        let directory = self.target(call, &at.directory).map_err(refused)?;
        let name = at.name.0.clone();
        let found = async {
            let (file, attributes) = find(&directory, at).await?;
            Ok::<_, Status>(match self.across(call, &directory, &name, &attributes).await? {
                Some(across) => across,
                None => (self.exports.sign(&directory.admitted.export, file), attributes),
            })
        };
        match found.await {
            Ok((file, attributes)) => Ok(Found {
                file,
                attributes: Some((&attributes).into()),
                directory: directory.wire_attributes().await,
            }),
            Err(status) => Err(directory.refused(status).await),
        }
    }

    pub(super) async fn access(&self, call: &Call, asked: AccessCall) -> OrAttributes<AccessGranted> {
        let target = self.target(call, &asked.file).map_err(refused)?;
        let granted = target
            .vfs()
            .check_access(&target.caller, target.admitted.file, access_mask(asked.mask))
            .await;
        match granted {
            Ok((granted, attributes)) => {
                let changes = ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE;
                let forbidden = if target.admitted.read_only { changes } else { 0 };
                Ok(AccessGranted {
                    attributes: Some((&attributes).into()),
                    mask: wire_mask(granted) & asked.mask & !forbidden,
                })
            }
            Err(error) => Err(target.refused(error).await),
        }
    }

    pub(super) async fn read_link(&self, call: &Call, file: WireHandle) -> OrAttributes<LinkTarget> {
        let target = self.target(call, &file).map_err(refused)?;
        match target.vfs().read_link(&target.caller, target.admitted.file).await {
            Ok((text, attributes)) => Ok(LinkTarget {
                attributes: Some((&attributes).into()),
                target: Opaque(text),
            }),
            Err(error) => Err(target.refused(error).await),
        }
    }

    pub(super) async fn file_system_status(
        &self,
        call: &Call,
        root: WireHandle,
    ) -> OrAttributes<FileSystemStatus> {
        let target = self.target(call, &root).map_err(refused)?;
        match target.vfs().file_system_status().await {
            Ok(status) => Ok(FileSystemStatus {
                attributes: target.wire_attributes().await,
                total_bytes: status.total_bytes,
                free_bytes: status.free_bytes,
                available_bytes: status.free_bytes,
                total_files: status.total_files,
                free_files: status.free_files,
                available_files: status.free_files,
                invariant_seconds: 0,
            }),
            Err(error) => Err(target.refused(error).await),
        }
    }

    pub(super) async fn file_system_information(
        &self,
        call: &Call,
        root: WireHandle,
    ) -> OrAttributes<FileSystemInformation> {
        let target = self.target(call, &root).map_err(refused)?;
        let attributes = self.existing(&target).await?;
        let limits = target.vfs().limits();
        let maximum = limits.maximum_io_bytes.min(self.io_max_bytes);
        let preferred = limits.preferred_io_bytes.min(maximum);
        Ok(FileSystemInformation {
            attributes: Some(attributes),
            read_maximum: maximum,
            read_preferred: preferred,
            read_multiple: IO_MULTIPLE_BYTES,
            write_maximum: maximum,
            write_preferred: preferred,
            write_multiple: IO_MULTIPLE_BYTES,
            directory_preferred: DIRECTORY_PREFERRED_BYTES.min(self.io_max_bytes),
            file_maximum_bytes: limits.file_bytes,
            time_resolution: Time {
                seconds: 0,
                nanoseconds: 1,
            },
            properties: PROPERTY_LINKS | PROPERTY_SYMLINKS | PROPERTY_HOMOGENEOUS | PROPERTY_CAN_SET_TIME,
        })
    }

    pub(super) async fn path_configuration(
        &self,
        call: &Call,
        file: WireHandle,
    ) -> OrAttributes<PathConfiguration> {
        let target = self.target(call, &file).map_err(refused)?;
        Ok(PathConfiguration {
            attributes: Some(self.existing(&target).await?),
            links_maximum: target.vfs().limits().links,
            name_maximum: Name::MAX_BYTES as u32,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }

    /// The attributes of a file that must exist for the call to make sense.
    async fn existing(&self, target: &Target) -> OrAttributes<FileAttributes> {
        let attributes = target.vfs().attributes(target.admitted.file).await;
        attributes.map(|attributes| (&attributes).into()).map_err(refused)
    }
}

async fn find(directory: &Target, at: Entry) -> Result<(FileHandle, Attributes), Status> {
    let (vfs, caller, file) = (directory.vfs(), &directory.caller, directory.admitted.file);
    match &at.name.0[..] {
        b"." => {
            let attributes = vfs.attributes(file).await?;
            if attributes.kind != firn_vfs::FileKind::Directory {
                return Err(VfsError::NotDirectory.into());
            }
            Ok((file, attributes))
        }
        b".." => Ok(vfs.parent(caller, file).await?),
        _ => {
            let name = super::name(at.name, Status::Exists)?;
            Ok(vfs.lookup(caller, file, &name).await?)
        }
    }
}
