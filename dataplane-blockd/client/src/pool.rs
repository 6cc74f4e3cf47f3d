//! Connections to nodes: one each, opened when needed, opened anew when lost.
//!
//! Each connection bounds the bytes in flight on it. A node that could not be reached is left alone for a moment, so that
//! the many stores that wait for it do not all knock at once.

use crate::access::Access;
use firn_blockd_protocol::{
    CallError, Connection, ConnectionOptions, DiskId, Fence, NodeId, Refusal, Replica, Reply, Request,
    TenantId,
};
use firn_env::{Env, Monotonic};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// How long a node is left alone that could not be reached: shorter than what anybody notices, long enough for a machine
/// that is down to cost nothing.
const LEFT_ALONE: Duration = Duration::from_millis(100);

/// Whom the connections speak for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker {
    pub(crate) tenant: TenantId,
    pub(crate) disk: DiskId,
    pub(crate) fence: Fence,
}

#[derive(Default)]
struct Slot {
    open: Option<Arc<Connection>>,
    failed: Option<(Monotonic, CallError)>,
}

pub(crate) struct Pool {
    env: Env,
    access: Access,
    speaker: Speaker,
    options: ConnectionOptions,
    /// One connection of each node is being opened at a time; a cluster's nodes bound their number.
    slots: Mutex<BTreeMap<NodeId, Arc<tokio::sync::Mutex<Slot>>>>,
}

impl Pool {
    pub(crate) fn new(env: &Env, access: Access, speaker: Speaker, options: ConnectionOptions) -> Self {
        Self {
            env: env.clone(),
            access,
            speaker,
            options,
            slots: Mutex::default(),
        }
    }

    fn slot(&self, node: NodeId) -> Arc<tokio::sync::Mutex<Slot>> {
        self.slots
            .lock()
            .expect("no panic under this lock")
            .entry(node)
            .or_default()
            .clone()
    }

    /// Asks a replica. An expired capability is renewed on the way.
    pub(crate) async fn call(&self, replica: &Replica, request: Request) -> Result<Reply, CallError> {
        let connection = self.connection(replica).await?;
        let mut answer = connection.call(request.clone()).await;
        if let Err(CallError::Refused(Refusal::CapabilityExpired | Refusal::NotAuthenticated)) = answer {
            answer = match self.authenticate(&connection).await {
                Ok(()) => connection.call(request).await,
                Err(error) => Err(error),
            };
        }
        if !matches!(answer, Ok(_) | Err(CallError::Refused(_))) {
            let slot = self.slot(replica.node);
            let mut slot = slot.lock().await;
            if slot
                .open
                .as_ref()
                .is_some_and(|open| Arc::ptr_eq(open, &connection))
            {
                slot.open = None;
            }
        }
        answer
    }

    async fn connection(&self, replica: &Replica) -> Result<Arc<Connection>, CallError> {
        let slot = self.slot(replica.node);
        let mut slot = slot.lock().await;
        if let Some(open) = slot.open.as_ref().filter(|open| open.is_open()) {
            return Ok(open.clone());
        }
        if let Some((at, why)) = &slot.failed
            && self.env.now().since(*at) < LEFT_ALONE
        {
            return Err(why.clone());
        }
        slot.open = None;
        match self.open(replica).await {
            Ok(open) => {
                slot.failed = None;
                slot.open = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                slot.failed = Some((self.env.now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open(&self, replica: &Replica) -> Result<Arc<Connection>, CallError> {
        let options = ConnectionOptions {
            expect: Some(replica.node),
            ..self.options.clone()
        };
        let transport = &self.access.transport;
        let opened = Connection::dial(&self.env, transport, replica.node, &replica.address, options).await?;
        self.authenticate(&opened).await?;
        Ok(Arc::new(opened))
    }

    async fn authenticate(&self, connection: &Connection) -> Result<(), CallError> {
        let Speaker { tenant, disk, fence } = self.speaker;
        let capability = self
            .access
            .capabilities
            .capability(tenant, disk, fence)
            .await
            .map_err(|error| CallError::Refused(Refusal::CapabilityInvalid(error.0)))?;
        connection.call(Request::Authenticate { capability }).await?;
        Ok(())
    }
}
