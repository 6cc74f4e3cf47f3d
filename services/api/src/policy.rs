//! The decision who may do what: `policy/authz.rego`, evaluated in this process. A gateway with Open Policy Agent reads the
//! same file, so there is one policy, not two that agree by luck. Anything but a clear `true` is a no.

use crate::{
    context::Caller,
    problem::{Code, Problem},
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The policy's text, linked in: a service without its policy cannot be started by mistake.
pub const POLICY: &str = include_str!("../policy/authz.rego");

/// What a decision is made from.
#[derive(Clone, Debug, Serialize)]
pub struct Question<'a> {
    /// Method and path pattern.
    pub operation: &'a str,
    /// The path's parameters.
    pub params: &'a BTreeMap<String, String>,
    /// Who asks; absent at the door.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<PolicyQuestion<'a>>,
}

/// Who asks, as the policy sees it.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyQuestion<'a> {
    tenant: String,
    principal: String,
    role: &'static str,
    scopes: &'a [String],
}

impl<'a> PolicyQuestion<'a> {
    /// As a verified token or certificate would say: for tables and tests of policies.
    pub fn new(
        tenant: firn_identity::TenantId,
        principal: firn_identity::Principal,
        role: firn_identity::Role,
        scopes: &'a [String],
    ) -> Self {
        Self {
            tenant: tenant.to_string(),
            principal: principal.to_string(),
            role: role.as_str(),
            scopes,
        }
    }
}

impl<'a> From<&'a Caller> for PolicyQuestion<'a> {
    fn from(caller: &'a Caller) -> Self {
        Self::new(caller.tenant, caller.principal, caller.role, &caller.scopes)
    }
}

/// Decides.
pub trait Policy: Send + Sync {
    /// Whether the question's answer is yes.
    fn allows(&self, question: &Question<'_>) -> bool;
}

/// The policy cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the policy does not compile: {0}")]
pub struct BadPolicy(String);

/// The Rego policy in this process.
#[derive(Clone)]
pub struct RegoPolicy(Arc<regorus::CompiledPolicy>);

impl RegoPolicy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// [`BadPolicy`] with the place of the error.
    pub fn compile(text: &str) -> Result<Self, BadPolicy> {
        let bad = |error: &dyn fmt::Display| BadPolicy(error.to_string());
        let mut engine = regorus::Engine::new();
        engine
            .add_policy("authz.rego".into(), text.to_owned())
            .map_err(|error| bad(&error))?;
        let compiled = engine
            .compile_with_entrypoint(&"data.firn.authz.allow".into())
            .map_err(|error| bad(&error))?;
        Ok(Self(Arc::new(compiled)))
    }

    /// The operations that have a row.
    ///
    /// # Errors
    /// If the policy holds no rows.
    pub fn rows(text: &str) -> Result<Vec<String>, BadPolicy> {
        let bad = |error: &dyn fmt::Display| BadPolicy(error.to_string());
        let mut engine = regorus::Engine::new();
        engine
            .add_policy("authz.rego".into(), text.to_owned())
            .map_err(|error| bad(&error))?;
        let rows = engine
            .eval_rule("data.firn.authz.rows".into())
            .map_err(|error| bad(&error))?;
        let rows = rows.as_object().map_err(|error| bad(&error))?;
        rows.keys()
            .map(|row| {
                row.as_string()
                    .map(|row| row.to_string())
                    .map_err(|error| bad(&error))
            })
            .collect()
    }
}

impl Policy for RegoPolicy {
    fn allows(&self, question: &Question<'_>) -> bool {
        let Ok(input) = serde_json::to_string(question) else {
            return false;
        };
        let decision = regorus::Value::from_json_str(&input).and_then(|input| self.0.eval_with_input(input));
        match decision {
            Ok(decision) => decision == regorus::Value::Bool(true),
            Err(error) => {
                tracing::error!(%error, "the policy could not be evaluated; the answer is no");
                false
            }
        }
    }
}

pub(crate) fn refuse(caller: Option<&Caller>) -> Problem {
    match caller {
        None => Problem::new(Code::NotAuthenticated, "send a token: Authorization: Bearer …"),
        Some(caller) => Problem::new(
            Code::NotAllowed,
            format!(
                "role {} or the token's scopes do not include this; ask an owner",
                caller.role
            ),
        ),
    }
}

/// Asks a policy about a caller without scopes: for tables and tests of policies.
pub fn ask(
    policy: &dyn Policy,
    operation: &str,
    params: &BTreeMap<String, String>,
    tenant: firn_identity::TenantId,
    principal: firn_identity::Principal,
    role: firn_identity::Role,
) -> bool {
    policy.allows(&Question {
        operation,
        params,
        caller: Some(PolicyQuestion::new(tenant, principal, role, &[])),
    })
}
