//! The control plane: who the tenants are, what they have, and who may change it.
//!
//! ```text
//! request ─► router ─► authenticate ─► policy (Rego) ─► TenantContext ─► handler ─► Change ─► table
//!             │            token, certificate               │ the only key to a tenant's records     one transaction:
//!             └── endpoint list: also OpenAPI, policy test, isolation matrix                         records, audit entry,
//!                                                                                                    kept reply
//! sagas: disk create, grow, delete ─► placement on nodes; volume erase; edge remove
//! usage: spool, edges, components ─► crates/billing ─► invoices, budgets, hard caps (upkeep)
//! ```
//!
//! Everything is stored through one conditional-write table; its keys, and what survives what, are in
//! `docs/control-plane.md`. The service holds no key that opens a customer's data: key rings are wrapped and signed by the
//! tenant, join secrets never reach it, API keys are hashed.

mod anchor_table;
mod app;
mod authenticate;
#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "azure")]
mod azure;
mod backup;
mod cloud;
mod cluster_table;
mod connections;
mod context;
mod endpoint;
mod fleet;
mod handlers;
#[cfg(any(feature = "aws", feature = "azure"))]
mod http_client;
mod idempotency;
#[cfg(any(feature = "aws", feature = "azure"))]
mod keeping;
mod limiter;
mod listener;
mod living;
mod mailer;
mod metering;
mod metrics;
pub mod names;
pub mod openapi;
mod placement;
mod policy;
mod pool;
mod problem;
mod provision;
mod record;
mod request_id;
mod revival;
mod router;
mod saga;
mod secrets;
mod server;
mod store;
mod sweep;
mod tenant_locks;
mod throttle;
pub mod types;
mod upkeep;

pub use anchor_table::{ANCHOR_PARTITIONS, AnchorTableError, move_roots, require_anchor_table};
pub use app::{AUDIENCE, App, DISK_CAPABILITY_SECONDS, Parts, REVOKED_WITHIN};
#[cfg(feature = "aws")]
pub use aws::{
    AwsAccount, AwsError,
    ec2::{Ec2, InstanceShape},
    proof::{keep_ring, prove_objects},
    sts::StsSessions,
};
#[cfg(feature = "azure")]
pub use azure::{AzureSessions, BadAccountKey};
pub use backup::{BackupError, Restored, backup, restore};
pub use cloud::{
    AwsSession, BothClouds, CloudCredential, CloudError, CloudSession, CloudSessions, NoCloud, Place,
    PlaceError, ProofRequest, RingObject, SESSION_SECONDS, SessionRequest,
};
pub use cluster_table::{SharedTable, require_own_table};
pub use context::{Caller, TenantContext};
pub use endpoint::Endpoint;
pub use fleet::Fleet;
pub use handlers::{find_lost_nodes, set_capped, verify_chain, verify_head};
pub use limiter::{Limits, RequestRate};
pub use listener::Remote;
pub use living::Roster;
pub use mailer::{FileMailer, Mail, MailError, Mailer};
pub use metering::{observe_capacity, record_operations, settle_commits, settle_commits_of};
pub use placement::{DiskPlacement, DiskPlan, NoFleet, PlacementError, Room};
pub use policy::{BadPolicy, POLICY, Policy, PolicyQuestion, Question, RegoPolicy, ask};
pub use pool::{MAX_POOL_NODES, Pool, PoolSettings, reconcile};
pub use problem::{Code, Problem};
pub use provision::{Boot, Machine, NodePlan, NodeProvisioner, Processes, ProvisionError};
pub use record::Recorder;
pub use revival::{Since, require_settled};
pub use router::{endpoints, router};
pub use saga::drive_all;
pub use secrets::MasterSecret;
pub use server::{Bound, CONNECTIONS, CONNECTIONS_PER_ADDRESS, Listening, ServeError, serve, serve_recorded};
pub use store::roots_partition;
pub use sweep::sweep;
pub use upkeep::{check_budget, copy_findings, fold, settle, watch};
