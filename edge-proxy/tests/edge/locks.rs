//! A lock manager of a client machine, as its calls look to the edge.

use crate::machine::{Files, Machine, TIMEOUT};
use firn_env::Env;
use firn_nfs::{
    nlm::{self, LockCall, LockStatus, NetObject, StatusReply, WireLock},
    rpc::{Client, Credential, Target},
    xdr::Decode,
};

/// LOCK, upon which the edge keeps in mind whom to tell of its restarts.
const LOCK: u32 = 2;
/// The same without that.
const UNMONITORED_LOCK: u32 = 22;
const UNLOCK: u32 = 4;

/// A client machine that wants one lock: for writing, on the whole of a file.
#[derive(Clone)]
pub struct LockClient {
    env: Env,
    edge: String,
    name: &'static str,
    file: NetObject,
}

impl LockClient {
    /// Named as clients name themselves; `file` is in the root directory.
    pub async fn new(edge: &Machine, files: &Files, name: &'static str, file: &str) -> Self {
        let found = files.client().lookup(files.root(), file).await;
        Self {
            env: firn_env::real(&edge.state).expect("an environment"),
            edge: format!("127.0.0.1:{}", edge.port),
            name,
            file: found.expect("an answer").expect("the file").file.0.into(),
        }
    }

    fn wire_lock(&self) -> WireLock {
        WireLock {
            caller: self.name.into(),
            handle: self.file.clone(),
            owner: self.name.into(),
            process: 1,
            offset: 0,
            length_bytes: 0,
        }
    }

    /// Over a connection of its own, since the edge may have restarted; nothing if it does not answer.
    async fn call(
        &self,
        procedure: u32,
        arguments: &(impl firn_nfs::xdr::Encode + Sync),
    ) -> Option<LockStatus> {
        let client = Client::connect(&self.env, &self.edge, TIMEOUT).await.ok()?;
        let target = Target {
            program: nlm::PROGRAM,
            version: nlm::VERSION,
            credential: Credential::sys(self.name, 0, 0, Vec::new()),
        };
        let mut results = client.call(&target, procedure, arguments).await.ok()?;
        Some(StatusReply::decode(&mut results).expect("a status").status)
    }

    async fn ask(&self, procedure: u32, reclaim: bool) -> Option<LockStatus> {
        let call = LockCall {
            cookie: "lock".into(),
            block: false,
            exclusive: true,
            lock: self.wire_lock(),
            reclaim,
            state: 3,
        };
        self.call(procedure, &call).await
    }

    /// Asks for the lock without waiting for it.
    pub async fn lock(&self) -> Option<LockStatus> {
        self.ask(LOCK, false).await
    }

    /// The same, and the edge does not remember who asked.
    pub async fn lock_unmonitored(&self) -> Option<LockStatus> {
        self.ask(UNMONITORED_LOCK, false).await
    }

    /// Asks for what it held before the edge restarted.
    pub async fn reclaim(&self) -> Option<LockStatus> {
        self.ask(LOCK, true).await
    }

    /// Gives it back.
    pub async fn unlock(&self) -> Option<LockStatus> {
        let call = nlm::UnlockCall {
            cookie: "unlock".into(),
            lock: self.wire_lock(),
        };
        self.call(UNLOCK, &call).await
    }
}
