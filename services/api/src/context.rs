//! Request context: the caller, proved; and the tenant that they may touch, proved.
//!
//! Repositories take a [`TenantContext`], and the only ways to one are below. So even if the policy let everything through,
//! a caller of one tenant could not name an item of another: every key a repository builds starts with the context's tenant.

use crate::problem::{Code, Problem};
use firn_identity::{EdgeId, NodeId, Principal, Role, TenantId, TokenId};

/// Who asks: what a verified token or client certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub(crate) tenant: TenantId,
    pub(crate) principal: Principal,
    pub(crate) role: Role,
    pub(crate) scopes: Vec<String>,
    /// The token, if it came with one.
    pub(crate) token: Option<TokenId>,
}

/// A tenant that the caller was found to belong to.
#[derive(Clone, Debug)]
pub struct TenantContext {
    tenant: TenantId,
    caller: Option<Caller>,
}

impl TenantContext {
    /// Lets a caller into the tenant the path names, if it is the caller's own; an edge or a node only to itself.
    pub(crate) fn enter(
        caller: Caller,
        tenant: TenantId,
        edge: Option<EdgeId>,
        node: Option<NodeId>,
    ) -> Result<Self, Problem> {
        let itself = match caller.principal {
            Principal::Edge(id) => edge.is_none_or(|edge| edge == id),
            Principal::Node(id) => node.is_none_or(|node| node == id),
            Principal::Member(_) | Principal::Key(_) => true,
        };
        if caller.tenant != tenant || !itself {
            return Err(Problem::new(
                Code::NotAllowed,
                "this is not yours; nothing was looked up",
            ));
        }
        Ok(Self {
            tenant,
            caller: Some(caller),
        })
    }

    /// The tenant whose door somebody stands at with a secret (API key, code, join secret) that the operation itself checks
    /// against that tenant's records before it does anything else.
    pub(crate) fn at_the_door(tenant: TenantId) -> Self {
        Self { tenant, caller: None }
    }

    /// A tenant for whom the service itself goes on: a persisted saga, a cap that billing found to be reached.
    pub(crate) fn for_service(tenant: TenantId) -> Self {
        Self { tenant, caller: None }
    }

    /// The other tenant of a grant: its owner, or who was granted something. What is looked up there is what the grant names.
    pub(crate) fn for_grant(tenant: TenantId) -> Self {
        Self { tenant, caller: None }
    }

    /// The tenant.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Who asks; nobody at the door.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Who asks, for operations that are never at the door.
    pub(crate) fn proved(&self) -> Result<&Caller, Problem> {
        self.caller
            .as_ref()
            .ok_or_else(|| Problem::new(Code::NotAuthenticated, "send a token: Authorization: Bearer …"))
    }
}
