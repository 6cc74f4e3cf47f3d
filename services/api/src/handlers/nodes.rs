//! Nodes: invited, joined, heard of, drained. Where tracts go is the placement's matter.
//!
//! What a node is called in its certificate says in whose cluster it may copy: those of the fleet's tenant get the fleet's
//! name, those of any other tenant one that names the tenant, which the fleet's nodes do not know.

use super::{LimitsRecord, NameRecord, edges, hex_field, name_entry, name_sort, require_free_name};
use crate::{
    app::App,
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    names::DisplayName,
    placement::PlacementError,
    problem::{Code, Problem},
    saga::{SagaRecord, Work},
    secrets::hex,
    store::{Change, Record, TenantStore},
    types::{
        CertificateIssued, Heartbeat, InUse, InviteNode, JoinNode, Node, NodeJoined, NodeState,
        RenewCertificate,
    },
};
use axum::http::{Method, StatusCode};
use firn_identity::{NodeId, PeerKind, Principal, TenantId, UnixTime};
use serde::{Deserialize, Serialize};

/// A node says that it is there every few seconds; one that missed a dozen times is gone, or cut off, which is the same to
/// whoever wants its data.
const LOST_SECONDS: u64 = 60;
/// The largest disk of a node: 1 PiB.
const MAX_CAPACITY_BYTES: u64 = 1 << 50;

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) node: Node,
    pub(crate) authenticator_hash: Option<String>,
    pub(crate) invitation_expires: UnixTime,
    /// The service started its machine, and ends it.
    #[serde(default)]
    pub(crate) is_provisioned: bool,
}

impl Record for NodeRecord {
    const KIND: &'static str = "node";
}

impl NodeRecord {
    pub(crate) fn sort(id: NodeId) -> String {
        format!("node/{id}")
    }

    /// The same, on its way out.
    pub(crate) fn draining(&self, saga: &SagaRecord) -> Self {
        let mut record = self.clone();
        record.node.state = NodeState::Draining;
        record.node.operation = Some(saga.id.clone());
        record
    }
}

/// A node's place in the index of names.
pub(crate) fn node_name_sort(name: &DisplayName) -> String {
    name_sort("node", &name.folded())
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const NODES: &str = "/v1/tenants/{tenant}/nodes";
    const NODE: &str = "/v1/tenants/{tenant}/nodes/{node}";
    vec![
        Endpoint::new(Method::GET, NODES, "listNodes", "Lists nodes", list).lists::<Node>(),
        Endpoint::new(
            Method::POST,
            NODES,
            "inviteNode",
            "Invites a node with a join secret made by the client",
            invite,
        )
        .takes::<InviteNode>()
        .gives::<Node>(StatusCode::CREATED),
        Endpoint::new(Method::GET, NODE, "getNode", "Shows a node", get)
            .gives::<Node>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::DELETE,
            NODE,
            "drainNode",
            "Starts to empty a node, and then removes it; one that never joined is removed at once",
            drain,
        )
        .gives::<Node>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/nodes/{node}/join",
            "joinNode",
            "Joins as a node: once, by whoever holds the secret",
            join,
        )
        .takes::<JoinNode>()
        .gives::<NodeJoined>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/nodes/{node}/heartbeat",
            "heartbeat",
            "Says that a node is alive and what is free on it",
            heartbeat,
        )
        .takes::<Heartbeat>()
        .gives::<Node>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/nodes/{node}/certificate",
            "renewNodeCertificate",
            "Gives a node its next certificate",
            renew,
        )
        .takes::<RenewCertificate>()
        .gives::<CertificateIssued>(StatusCode::CREATED),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    call.list::<NodeRecord, _>("node/", |record| record.node).await
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let id: NodeId = call.param("node")?;
    let node = call
        .store()?
        .require::<NodeRecord>(&NodeRecord::sort(id), id)
        .await?;
    Ok(Reply::json(StatusCode::OK, &node.record.node).tagged(&node))
}

async fn invite(call: Call) -> Result<Reply, Problem> {
    let body: InviteNode = call.body()?;
    let _: [u8; 32] = hex_field("authenticator_hash", &body.authenticator_hash)?;
    let domain_fits = (1..=64).contains(&body.failure_domain.len())
        && body.failure_domain.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        });
    if !domain_fits {
        return Err(Problem::field("failure_domain", "1 to 64 of a-z 0-9 . _ -"));
    }
    let store = call.store()?;
    let name = node_name_sort(&body.name);
    require_free_name(&store, &name).await?;
    let limits = LimitsRecord::load(&store).await?;
    let taken = limits.record.take(
        "nodes",
        InUse {
            nodes: 1,
            ..InUse::default()
        },
    )?;
    let now = call.app.now();
    let node = Node {
        id: NodeId::random(&mut call.app.entropy()),
        name: body.name,
        failure_domain: body.failure_domain,
        state: NodeState::Invited,
        address: None,
        capacity_bytes: 0,
        free_bytes: 0,
        machine: None,
        operation: None,
        last_seen: None,
        created: now,
    };
    let record = NodeRecord {
        node: node.clone(),
        authenticator_hash: Some(body.authenticator_hash),
        invitation_expires: now.plus(edges::JOIN_SECONDS),
        is_provisioned: false,
    };
    let change = call
        .change("node.invite", node.id)?
        .create(&NodeRecord::sort(node.id), &record)
        .create(
            &name,
            &NameRecord {
                owner: node.id.to_string(),
            },
        )
        .update(&limits, &taken);
    call.commit(change, Reply::json(StatusCode::CREATED, &node)).await
}

async fn join(call: Call) -> Result<Reply, Problem> {
    let body: JoinNode = call.body()?;
    let id: NodeId = call.param("node")?;
    let store = call.store()?;
    let loaded = store
        .get::<NodeRecord>(&NodeRecord::sort(id))
        .await?
        .ok_or_else(edges::join_refused)?;
    let stored = loaded
        .record
        .authenticator_hash
        .as_deref()
        .ok_or_else(edges::join_refused)?;
    edges::check_authenticator(
        stored,
        &body.authenticator,
        loaded.record.invitation_expires,
        call.app.now(),
    )?;
    let address_fits =
        (1..=256).contains(&body.address.len()) && body.address.bytes().all(|byte| byte.is_ascii_graphic());
    if !address_fits {
        return Err(Problem::field("address", "host:port"));
    }
    if body.capacity_bytes > MAX_CAPACITY_BYTES {
        return Err(Problem::field(
            "capacity_bytes",
            format!("at most {MAX_CAPACITY_BYTES}"),
        ));
    }
    let kind = kind_of(&call, id)?;
    let request = match &kind {
        PeerKind::TenantNode { .. } => body.tenant_certificate_request.as_ref().ok_or_else(|| {
            Problem::field(
                "tenant_certificate_request",
                "this tenant's nodes are its own, so the certificate names the tenant; update firn-blockd, which asks for it",
            )
        })?,
        _ => &body.certificate_request,
    };
    let certificate = edges::certificate(&call, request, kind)?;
    let mut record = loaded.record.clone();
    record.authenticator_hash = None;
    record.node.state = NodeState::Active;
    record.node.address = Some(body.address);
    record.node.capacity_bytes = body.capacity_bytes;
    record.node.free_bytes = body.capacity_bytes;
    record.node.last_seen = Some(call.app.now());
    let change = call
        .change("node.join", id)?
        .by(Principal::Node(id))
        .update(&loaded, &record);
    change.commit(call.app.env(), None).await?;
    call.app.wake_sagas();
    let joined = NodeJoined {
        node: record.node,
        certificate,
        capability_key: hex(&call.app.capabilities().public().to_bytes()),
    };
    Ok(Reply::json(StatusCode::OK, &joined))
}

/// What a node of the caller's tenant is called.
fn kind_of(call: &Call, node: NodeId) -> Result<PeerKind, Problem> {
    let tenant = call.context()?.tenant();
    Ok(if call.app.is_fleets(tenant) {
        PeerKind::Node(node)
    } else {
        PeerKind::TenantNode { tenant, node }
    })
}

/// Not audited: it comes every few seconds and changes nothing that anybody decided.
async fn heartbeat(call: Call) -> Result<Reply, Problem> {
    let body: Heartbeat = call.body()?;
    let id: NodeId = call.param("node")?;
    let store = call.store()?;
    let loaded = store.require::<NodeRecord>(&NodeRecord::sort(id), id).await?;
    if body.free_bytes > loaded.record.node.capacity_bytes {
        return Err(Problem::field(
            "free_bytes",
            "more than the node said it has; it lies or was given another disk",
        ));
    }
    let mut record = loaded.record.clone();
    record.node.free_bytes = body.free_bytes;
    record.node.last_seen = Some(call.app.now());
    if loaded.record.node.state == NodeState::Lost {
        // That it is back is news, unlike that it is still there.
        record.node.state = NodeState::Active;
        let change = call.change("node.found", id)?.update(&loaded, &record);
        change.commit(call.app.env(), None).await?;
        return Ok(Reply::json(StatusCode::OK, &record.node));
    }
    let write = firn_table::Write::Put {
        key: loaded.key.clone(),
        value: crate::store::encode(&record),
        condition: firn_table::Condition::Version(loaded.version),
    };
    store.table().transact(vec![write]).await?;
    Ok(Reply::json(StatusCode::OK, &record.node))
}

/// Marks the nodes of a tenant that were not heard of for [`LOST_SECONDS`]; gives how many. A heartbeat takes it back.
///
/// # Errors
/// If storage did not answer, or a node changed meanwhile: the next look sees.
pub async fn find_lost_nodes(app: &App, tenant: TenantId) -> Result<usize, Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let before = app.now().minus(LOST_SECONDS);
    let (mut lost, mut after) = (0, None);
    loop {
        let (nodes, next) = store.page::<NodeRecord>("node/", after.as_deref(), 100).await?;
        for node in nodes {
            let silent = node.record.node.last_seen.is_none_or(|seen| seen < before);
            if node.record.node.state != NodeState::Active || !silent {
                continue;
            }
            let mut record = node.record.clone();
            record.node.state = NodeState::Lost;
            Change::new(&store, None, "node.lost", record.node.id)
                .detail(format!("not heard of for {LOST_SECONDS} s"))
                .update(&node, &record)
                .commit(app.env(), None)
                .await?;
            lost += 1;
        }
        match next {
            Some(next) => after = Some(next),
            None => return Ok(lost),
        }
    }
}

async fn drain(call: Call) -> Result<Reply, Problem> {
    let id: NodeId = call.param("node")?;
    let store = call.store()?;
    let loaded = store.require::<NodeRecord>(&NodeRecord::sort(id), id).await?;
    call.check_if_match(&loaded)?;
    let mut record = loaded.record.clone();
    let change = call.change("node.drain", id)?;
    let change = match loaded.record.node.state {
        NodeState::Draining => return Ok(Reply::json(StatusCode::OK, &record.node)),
        NodeState::Active | NodeState::Lost => {
            call.app
                .placement()
                .may_drain(id)
                .await
                .map_err(|error| match error {
                    PlacementError::TooFewNodes(why) => Problem::new(Code::TooFewNodes, why),
                    PlacementError::NoCapacity(why) | PlacementError::Unavailable(why) => {
                        Problem::new(Code::StorageUnavailable, why)
                    }
                })?;
            let context = call.context()?;
            let principal = context.caller().map(|caller| caller.principal);
            let saga = SagaRecord::new(call.app.env(), principal, Work::DrainNode { node: id });
            record = record.draining(&saga);
            saga.begin(context.tenant(), change.update(&loaded, &record))
        }
        NodeState::Invited if record.is_provisioned => {
            return Err(Problem::new(
                Code::WrongState,
                "its machine is being started; wait until that operation is done",
            ));
        }
        NodeState::Invited => {
            let limits = LimitsRecord::load(&store).await?;
            let given = limits.record.give_back(InUse {
                nodes: 1,
                ..InUse::default()
            });
            let change = change.delete(&loaded).update(&limits, &given);
            match name_entry(&store, &node_name_sort(&record.node.name), id).await? {
                Some(entry) => change.delete(&entry),
                None => change,
            }
        }
    };
    let reply = call
        .commit(change, Reply::json(StatusCode::OK, &record.node))
        .await?;
    call.app.wake_sagas();
    Ok(reply)
}

async fn renew(call: Call) -> Result<Reply, Problem> {
    let body: RenewCertificate = call.body()?;
    let node: NodeId = call.param("node")?;
    edges::require_certificate(&call, &Principal::Node(node))?;
    let issued = edges::certificate(&call, &body.certificate_request, kind_of(&call, node)?)?;
    let change = call.change("node.certificate", node)?;
    change.commit(call.app.env(), None).await?;
    Ok(Reply::json(StatusCode::CREATED, &issued))
}
