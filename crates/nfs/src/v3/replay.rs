//! Replies to retransmissions of calls that were executed before the server's last start.
//!
//! The volume remembers that the change was made and what it created; everything else in a successful reply is attributes,
//! and these are taken now. Of the state before the change nothing is known any more, and the reply says so: the client
//! then drops what it has cached, which is right after a restart anyway.

use super::{
    Call, NfsProgram, Procedure, Target, refused, reply,
    types::{
        CreateCall, Entry, Failed, LinkCall, LinkResult, Made, MakeDirectoryCall, MakeNodeCall, RenameCall,
        RenameDirectories, SetAttributesCall, SymlinkCall, WccData,
    },
};
use crate::{
    handle::WireHandle,
    rpc::{Refusal, Reply},
    xdr::{Decode, Decoder},
};
use firn_vfs::FileHandle;

impl NfsProgram {
    /// The reply to a call that succeeded and, if it made a file, made `created`.
    pub(super) async fn replay(
        &self,
        call: &Call,
        procedure: Procedure,
        mut arguments: Decoder,
        created: Option<FileHandle>,
    ) -> Result<Reply, Refusal> {
        self.settle(call, &arguments).await?;
        let input = &mut arguments;
        Ok(match procedure {
            Procedure::SetAttributes => {
                let asked = SetAttributesCall::decode(input)?;
                reply(self.changed(call, &asked.file).await)
            }
            Procedure::Create => {
                let asked = CreateCall::decode(input)?;
                reply(self.made_before(call, &asked.at, created).await)
            }
            Procedure::MakeDirectory => {
                let asked = MakeDirectoryCall::decode(input)?;
                reply(self.directory_made_before(call, &asked.at, created).await)
            }
            Procedure::MakeSymlink => {
                let asked = SymlinkCall::decode(input)?;
                reply(self.made_before(call, &asked.at, created).await)
            }
            Procedure::MakeNode => {
                let asked = MakeNodeCall::decode(input)?;
                reply(self.made_before(call, &asked.at, created).await)
            }
            Procedure::Remove | Procedure::RemoveDirectory => {
                let at = Entry::decode(input)?;
                reply(self.changed(call, &at.directory).await)
            }
            Procedure::Rename => {
                let asked = RenameCall::decode(input)?;
                reply(self.renamed_before(call, &asked).await)
            }
            Procedure::Link => {
                let asked = LinkCall::decode(input)?;
                reply(self.linked_before(call, &asked).await)
            }
            // Only changes are recorded; of anything else the journal knows nothing, so it is executed.
            Procedure::Null
            | Procedure::GetAttributes
            | Procedure::Lookup
            | Procedure::Access
            | Procedure::ReadLink
            | Procedure::Read
            | Procedure::Write
            | Procedure::ReadDirectory
            | Procedure::ReadDirectoryPlus
            | Procedure::FileSystemStatus
            | Procedure::FileSystemInformation
            | Procedure::PathConfiguration
            | Procedure::Commit => self.execute(call, procedure, arguments).await?,
        })
    }

    /// What was made before the start is as durable as its answer says.
    async fn settle(&self, call: &Call, arguments: &Decoder) -> Result<(), Refusal> {
        // Whatever is wrong with the handle is said by the reply.
        let Ok(handle) = WireHandle::decode(&mut arguments.clone()) else {
            return Ok(());
        };
        let Ok(target) = self.target(call, &handle) else {
            return Ok(());
        };
        let settled = target.vfs().settle(&target.caller).await;
        // It is sent again.
        settled.map_err(|_| Refusal::Silence)
    }

    async fn changed(&self, call: &Call, file: &WireHandle) -> Result<WccData, Failed<WccData>> {
        Ok(after(&self.target(call, file).map_err(refused)?).await)
    }

    async fn directory_made_before(
        &self,
        call: &Call,
        at: &Entry,
        created: Option<FileHandle>,
    ) -> Result<Made, Failed<WccData>> {
        let made = self.made_before(call, at, created).await?;
        let directory = self.target(call, &at.directory).map_err(refused)?;
        Ok(self.behind_junction(&directory, &at.name.0, made).await)
    }

    async fn made_before(
        &self,
        call: &Call,
        at: &Entry,
        created: Option<FileHandle>,
    ) -> Result<Made, Failed<WccData>> {
        let directory = self.target(call, &at.directory).map_err(refused)?;
        let attributes = match created {
            Some(file) => directory.vfs().attributes(file).await.ok(),
            None => None,
        };
        Ok(Made {
            file: created.map(|file| self.exports.sign(&directory.admitted.export, file)),
            attributes: attributes.as_ref().map(Into::into),
            directory: after(&directory).await,
        })
    }

    async fn renamed_before(
        &self,
        call: &Call,
        asked: &RenameCall,
    ) -> Result<RenameDirectories, Failed<RenameDirectories>> {
        let from = self.target(call, &asked.from.directory).map_err(refused)?;
        let to = self.target(call, &asked.to.directory).map_err(refused)?;
        Ok(RenameDirectories {
            from: after(&from).await,
            to: after(&to).await,
        })
    }

    async fn linked_before(&self, call: &Call, asked: &LinkCall) -> Result<LinkResult, Failed<LinkResult>> {
        let file = self.target(call, &asked.file).map_err(refused)?;
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        Ok(LinkResult {
            attributes: file.wire_attributes().await,
            directory: after(&directory).await,
        })
    }
}

async fn after(target: &Target) -> WccData {
    WccData::afterwards(target.attributes().await.as_ref())
}
