//! Connections to other nodes, one each, opened when needed and opened anew when lost.

use bytes::Bytes;
use firn_blockd_protocol::{CallError, Connection, ConnectionOptions, NodeId, Reply, Request, Transport};
use firn_env::Env;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Gives the capability by which this node speaks to others; asked anew for each connection, since it ends. Nothing where
/// the name in the node's certificate is enough.
pub(crate) type NodeCapability = Arc<dyn Fn() -> Option<Bytes> + Send + Sync>;

pub(crate) struct Peers {
    env: Env,
    transport: Transport,
    capability: NodeCapability,
    open: Mutex<BTreeMap<NodeId, Arc<Connection>>>,
}

impl Peers {
    pub(crate) fn new(env: &Env, transport: Transport, capability: NodeCapability) -> Self {
        Self {
            env: env.clone(),
            transport,
            capability,
            open: Mutex::default(),
        }
    }

    pub(crate) async fn call(
        &self,
        node: NodeId,
        address: &str,
        request: Request,
    ) -> Result<Reply, CallError> {
        let connection = self.connection(node, address).await?;
        let answer = connection.call(request).await;
        if !matches!(answer, Ok(_) | Err(CallError::Refused(_))) {
            self.open.lock().expect("no panic under this lock").remove(&node);
        }
        answer
    }

    async fn connection(&self, node: NodeId, address: &str) -> Result<Arc<Connection>, CallError> {
        if let Some(open) = self.open.lock().expect("no panic under this lock").get(&node)
            && open.is_open()
        {
            return Ok(open.clone());
        }
        let options = ConnectionOptions {
            expect: Some(node),
            ..ConnectionOptions::default()
        };
        let connection =
            Arc::new(Connection::dial(&self.env, &self.transport, node, address, options).await?);
        if let Some(capability) = (self.capability)() {
            connection.call(Request::Authenticate { capability }).await?;
        }
        self.open
            .lock()
            .expect("no panic under this lock")
            .insert(node, connection.clone());
        Ok(connection)
    }
}
