//! A client of MOUNT and NFSv3: one typed call per procedure, nothing hidden.
//!
//! It caches nothing, retries nothing and runs as many calls at once as it is asked to, which is what tests, benches and
//! demonstrations want. A result has two layers: whether the call was answered ([`CallError`]), and how the procedure
//! ended ([`Failed`], with the attributes the server sent along).

use crate::{
    handle::WireHandle,
    mount::{self, ExportEntry, MountEntry, MountStatus, Mounted},
    rpc::{CallError, Client, Credential, Target},
    v3::{
        self, Procedure, acl,
        types::{
            AccessCall, AccessGranted, AclResult, CommitCall, Committed, CreateCall, CreateHow,
            DirectoryList, DirectoryListPlus, Entry, Failed, FileAttributes, FileSystemInformation,
            FileSystemStatus, Found, GetAclCall, LinkCall, LinkResult, LinkTarget, Made, MakeDirectoryCall,
            MakeNodeCall, NewAttributes, NewNode, PathConfiguration, ReadCall, ReadData, ReadDirectoryCall,
            ReadDirectoryPlusCall, RenameCall, RenameDirectories, SetAclCall, SetAttributesCall, StableHow,
            SymlinkCall, Time, Verifier, WccData, WireName, WriteCall, Written,
        },
    },
    xdr::{Decode, Encode, Encoder, Opaque},
};
use bytes::Bytes;
use firn_env::{ByteStream, Env};
use std::time::Duration;

/// An answer with what the procedure gives on success and on failure.
pub type Answer<S, F> = Result<Result<S, Failed<F>>, CallError>;
type OrAttributes<S> = Answer<S, Option<FileAttributes>>;
type OrUnchanged<S> = Answer<S, WccData>;

/// A connection to an NFS server, and the user in whose name it calls.
pub struct NfsClient {
    rpc: Client,
    nfs: Target,
    mount: Target,
    acl: Target,
}

/// A name in a directory, as calls take it.
pub fn entry(directory: &WireHandle, name: impl AsRef<[u8]>) -> Entry {
    Entry {
        directory: directory.clone(),
        name: WireName::from(Bytes::copy_from_slice(name.as_ref())),
    }
}

impl NfsClient {
    /// Connects to `address`.
    ///
    /// # Errors
    /// If no connection is made within `timeout`, which is also what each call waits for its reply.
    pub async fn connect(
        env: &Env,
        address: &str,
        credential: Credential,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        Ok(Self::with(
            Client::connect(env, address, timeout).await?,
            credential,
        ))
    }

    /// Calls over a connected stream.
    pub fn over(env: &Env, stream: Box<dyn ByteStream>, credential: Credential, timeout: Duration) -> Self {
        Self::with(Client::over(env, stream, timeout), credential)
    }

    fn with(rpc: Client, credential: Credential) -> Self {
        let target = |program, version| Target {
            program,
            version,
            credential: credential.clone(),
        };
        Self {
            rpc,
            nfs: target(v3::PROGRAM, v3::VERSION),
            mount: target(mount::PROGRAM, mount::VERSION),
            acl: target(acl::PROGRAM, acl::VERSION),
        }
    }

    /// The calls below, for what they do not cover.
    pub fn rpc(&self) -> &Client {
        &self.rpc
    }

    /// What this client calls NFS with.
    pub fn nfs_target(&self) -> &Target {
        &self.nfs
    }

    async fn call<R: Decode>(&self, procedure: Procedure, arguments: &impl Encode) -> Result<R, CallError> {
        let mut results = self.rpc.call(&self.nfs, procedure as u32, arguments).await?;
        Ok(R::decode(&mut results)?)
    }

    /// Sends a call with a chosen transaction id and returns its results undecoded: a retransmission, if the id was used.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_as(
        &self,
        transaction: u32,
        procedure: Procedure,
        arguments: &impl Encode,
    ) -> Result<Bytes, CallError> {
        let mut body = Encoder::new();
        arguments.encode(&mut body);
        let results = self
            .rpc
            .call_encoded(transaction, &self.nfs, procedure as u32, body)
            .await?;
        Ok(results.rest())
    }
}

/// MOUNT, on the same connection (a server may serve it elsewhere).
#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "each is the procedure of that name"
)]
impl NfsClient {
    pub async fn mount(&self, path: &str) -> Result<Result<Mounted, MountStatus>, CallError> {
        let path = Opaque::<{ crate::PATH_MAX_BYTES }>::from(path);
        let mut results = self.rpc.call(&self.mount, 1, &path).await?;
        match MountStatus::decode(&mut results)? {
            MountStatus::Ok => Ok(Ok(Mounted::decode(&mut results)?)),
            status => Ok(Err(status)),
        }
    }

    pub async fn dump_mounts(&self) -> Result<Vec<MountEntry>, CallError> {
        Ok(Decode::decode(&mut self.rpc.call(&self.mount, 2, &()).await?)?)
    }

    pub async fn unmount(&self, path: &str) -> Result<(), CallError> {
        let path = Opaque::<{ crate::PATH_MAX_BYTES }>::from(path);
        self.rpc.call(&self.mount, 3, &path).await.map(drop)
    }

    pub async fn unmount_all(&self) -> Result<(), CallError> {
        self.rpc.call(&self.mount, 4, &()).await.map(drop)
    }

    pub async fn exports(&self) -> Result<Vec<ExportEntry>, CallError> {
        Ok(Decode::decode(&mut self.rpc.call(&self.mount, 5, &()).await?)?)
    }
}

/// NFSv3.
#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "each is the procedure of that name"
)]
impl NfsClient {
    pub async fn null(&self) -> Result<(), CallError> {
        self.call(Procedure::Null, &()).await
    }

    pub async fn get_attributes(&self, file: &WireHandle) -> Answer<FileAttributes, ()> {
        self.call(Procedure::GetAttributes, file).await
    }

    pub async fn set_attributes(
        &self,
        file: &WireHandle,
        attributes: NewAttributes,
        guard: Option<Time>,
    ) -> OrUnchanged<WccData> {
        let file = file.clone();
        let call = SetAttributesCall {
            file,
            attributes,
            guard,
        };
        self.call(Procedure::SetAttributes, &call).await
    }

    pub async fn lookup(&self, directory: &WireHandle, name: impl AsRef<[u8]>) -> OrAttributes<Found> {
        self.call(Procedure::Lookup, &entry(directory, name)).await
    }

    pub async fn access(&self, file: &WireHandle, mask: u32) -> OrAttributes<AccessGranted> {
        let file = file.clone();
        self.call(Procedure::Access, &AccessCall { file, mask }).await
    }

    pub async fn read_link(&self, file: &WireHandle) -> OrAttributes<LinkTarget> {
        self.call(Procedure::ReadLink, file).await
    }

    pub async fn read(&self, file: &WireHandle, offset: u64, count: u32) -> OrAttributes<ReadData> {
        let file = file.clone();
        self.call(Procedure::Read, &ReadCall { file, offset, count })
            .await
    }

    pub async fn write(
        &self,
        file: &WireHandle,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> OrUnchanged<Written> {
        let call = WriteCall {
            file: file.clone(),
            offset,
            count: u32::try_from(data.len()).unwrap_or(u32::MAX),
            stable,
            data: data.into(),
        };
        self.call(Procedure::Write, &call).await
    }

    pub async fn create(
        &self,
        directory: &WireHandle,
        name: impl AsRef<[u8]>,
        how: CreateHow,
    ) -> OrUnchanged<Made> {
        let at = entry(directory, name);
        self.call(Procedure::Create, &CreateCall { at, how }).await
    }

    pub async fn make_directory(
        &self,
        directory: &WireHandle,
        name: impl AsRef<[u8]>,
        attributes: NewAttributes,
    ) -> OrUnchanged<Made> {
        let at = entry(directory, name);
        self.call(Procedure::MakeDirectory, &MakeDirectoryCall { at, attributes })
            .await
    }

    pub async fn make_symlink(
        &self,
        directory: &WireHandle,
        name: impl AsRef<[u8]>,
        target: &str,
        attributes: NewAttributes,
    ) -> OrUnchanged<Made> {
        let call = SymlinkCall {
            at: entry(directory, name),
            attributes,
            target: target.into(),
        };
        self.call(Procedure::MakeSymlink, &call).await
    }

    pub async fn make_node(
        &self,
        directory: &WireHandle,
        name: impl AsRef<[u8]>,
        node: NewNode,
    ) -> OrUnchanged<Made> {
        let at = entry(directory, name);
        self.call(Procedure::MakeNode, &MakeNodeCall { at, node }).await
    }

    pub async fn remove(&self, directory: &WireHandle, name: impl AsRef<[u8]>) -> OrUnchanged<WccData> {
        self.call(Procedure::Remove, &entry(directory, name)).await
    }

    pub async fn remove_directory(
        &self,
        directory: &WireHandle,
        name: impl AsRef<[u8]>,
    ) -> OrUnchanged<WccData> {
        self.call(Procedure::RemoveDirectory, &entry(directory, name))
            .await
    }

    pub async fn rename(&self, from: Entry, to: Entry) -> Answer<RenameDirectories, RenameDirectories> {
        self.call(Procedure::Rename, &RenameCall { from, to }).await
    }

    pub async fn link(&self, file: &WireHandle, at: Entry) -> Answer<LinkResult, LinkResult> {
        let file = file.clone();
        self.call(Procedure::Link, &LinkCall { file, at }).await
    }

    pub async fn read_directory(
        &self,
        directory: &WireHandle,
        cookie: u64,
        verifier: Verifier,
        count: u32,
    ) -> OrAttributes<DirectoryList> {
        let call = ReadDirectoryCall {
            directory: directory.clone(),
            cookie,
            verifier,
            count,
        };
        self.call(Procedure::ReadDirectory, &call).await
    }

    pub async fn read_directory_plus(
        &self,
        directory: &WireHandle,
        cookie: u64,
        verifier: Verifier,
        directory_count: u32,
        maximum_count: u32,
    ) -> OrAttributes<DirectoryListPlus> {
        let call = ReadDirectoryPlusCall {
            directory: directory.clone(),
            cookie,
            verifier,
            directory_count,
            maximum_count,
        };
        self.call(Procedure::ReadDirectoryPlus, &call).await
    }

    pub async fn file_system_status(&self, root: &WireHandle) -> OrAttributes<FileSystemStatus> {
        self.call(Procedure::FileSystemStatus, root).await
    }

    pub async fn file_system_information(&self, root: &WireHandle) -> OrAttributes<FileSystemInformation> {
        self.call(Procedure::FileSystemInformation, root).await
    }

    pub async fn path_configuration(&self, file: &WireHandle) -> OrAttributes<PathConfiguration> {
        self.call(Procedure::PathConfiguration, file).await
    }

    pub async fn commit(&self, file: &WireHandle, offset: u64, count: u32) -> OrUnchanged<Committed> {
        let file = file.clone();
        self.call(Procedure::Commit, &CommitCall { file, offset, count })
            .await
    }

    pub async fn get_acl(&self, file: &WireHandle, mask: u32) -> OrAttributes<AclResult> {
        let file = file.clone();
        let mut results = self.rpc.call(&self.acl, 1, &GetAclCall { file, mask }).await?;
        Ok(Decode::decode(&mut results)?)
    }

    pub async fn set_acl(&self, call: &SetAclCall) -> OrAttributes<Option<FileAttributes>> {
        Ok(Decode::decode(&mut self.rpc.call(&self.acl, 2, call).await?)?)
    }
}
