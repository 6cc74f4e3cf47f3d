//! READ, WRITE and COMMIT.
//!
//! The data of a READ stays in the cache's buffers until the socket takes it; the data of a WRITE is a slice of the
//! message it came in. Nothing here copies either.

use super::{
    Call, NfsProgram, refused,
    types::{
        CommitCall, Committed, Failed, FileAttributes, Payload, ReadCall, ReadData, WccData, WriteCall,
        Written,
    },
};
use firn_vfs::VfsError;

impl NfsProgram {
    pub(super) async fn read(
        &self,
        call: &Call,
        asked: ReadCall,
    ) -> Result<ReadData, Failed<Option<FileAttributes>>> {
        let target = self.target(call, &asked.file).map_err(refused)?;
        let vfs = target.vfs();
        let count = asked
            .count
            .min(vfs.limits().maximum_io_bytes)
            .min(self.io_max_bytes);
        match vfs
            .read(&target.caller, target.admitted.file, asked.offset, count)
            .await
        {
            Ok(read) => {
                let data = Payload(read.data);
                Ok(ReadData {
                    attributes: Some((&read.attributes).into()),
                    count: u32::try_from(data.len()).expect("no more than was asked for"),
                    end_of_file: read.end_of_file,
                    data,
                })
            }
            Err(error) => Err(target.refused(error).await),
        }
    }

    pub(super) async fn write(&self, call: &Call, asked: WriteCall) -> Result<Written, Failed<WccData>> {
        let target = self.target(call, &asked.file).map_err(refused)?;
        let vfs = target.vfs();
        // What is too large is written in part: the client sends the rest again.
        let limit = vfs.limits().maximum_io_bytes.min(self.io_max_bytes) as usize;
        let mut data = asked.data.0;
        for part in &mut data {
            part.truncate(limit);
        }
        let count = asked.count.min(limit as u32);
        // Taken before: if another takes its place meanwhile, the client writes once more, and never believes that it need not.
        let verifier = vfs.write_verifier();
        let written = async {
            target.writable()?;
            if asked.offset.checked_add(count.into()).is_none() {
                return Err(VfsError::FileTooLarge);
            }
            vfs.write(
                &target.caller,
                target.admitted.file,
                asked.offset,
                data,
                asked.stable.into(),
            )
            .await
        };
        match written.await {
            Ok(written) => Ok(Written {
                file: (&written.file).into(),
                count,
                committed: written.stability.into(),
                verifier,
            }),
            Err(error) => Err(target.unchanged(error).await),
        }
    }

    /// The range is not used: what makes one part of a file stable makes all of it stable, at the same price.
    pub(super) async fn commit(&self, call: &Call, asked: CommitCall) -> Result<Committed, Failed<WccData>> {
        let target = self.target(call, &asked.file).map_err(refused)?;
        let committed = async {
            target.writable()?;
            target.vfs().commit(&target.caller, target.admitted.file).await
        };
        match committed.await {
            Ok(changed) => Ok(Committed {
                file: (&changed).into(),
                // Taken after: see WRITE.
                verifier: target.vfs().write_verifier(),
            }),
            Err(error) => Err(target.unchanged(error).await),
        }
    }
}
