//! A whole service in memory, and callers of every kind.
#![allow(dead_code, reason = "each test file uses a part of it")]

mod clock;
pub mod cloud;
pub mod customer;
mod fleet;
mod letterbox;

pub use cloud::Cloud;
pub use fleet::Fleet;
pub use letterbox::Letterbox;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode},
};
use firn_api::{
    AUDIENCE, App, CloudSessions, DiskPlacement, Limits, MasterSecret, POLICY, Parts, Policy, Pool,
    RegoPolicy, Remote, router,
};
use firn_env::Env;
use firn_identity::{
    EdgeId, Grant, JoinSecret, MemberId, NodeId, PeerIdentity, PeerKind, Principal, Role, SigningKey,
    TenantId, TokenIssuer, UnixTime, certificate_request,
};
use firn_seal::{RecipientSecret, RecoveryPhrase};
use firn_table::{MemoryTable, Table};
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};
use tower::ServiceExt as _;

pub const ISSUER: &str = "https://firn.example";
pub const DOMAIN: &str = "firn.example";
pub const MASTER: [u8; 32] = [42; 32];

/// Lets everything through.
pub struct AllowAll;

impl Policy for AllowAll {
    fn allows(&self, _question: &firn_api::Question<'_>) -> bool {
        true
    }
}

pub struct Service {
    pub app: App,
    pub router: Router,
    pub mail: Letterbox,
    pub fleet: Fleet,
    pub table: MemoryTable,
    pub env: Env,
    pub pool: Option<Pool>,
}

pub fn env() -> Env {
    firn_env::real(&std::env::temp_dir()).unwrap()
}

pub fn app_over(
    env: &Env,
    table: Arc<dyn Table>,
    policy: Arc<dyn Policy>,
    mail: &Letterbox,
    placement: Arc<dyn DiskPlacement>,
) -> App {
    app_in(env, table, policy, mail, placement, Arc::new(Cloud), None)
}

pub fn app_in(
    env: &Env,
    table: Arc<dyn Table>,
    policy: Arc<dyn Policy>,
    mail: &Letterbox,
    placement: Arc<dyn DiskPlacement>,
    cloud: Arc<dyn CloudSessions>,
    pool: Option<Pool>,
) -> App {
    app_with(env, table, policy, mail, placement, cloud, pool, None)
}

#[allow(clippy::too_many_arguments, reason = "the parts of a service")]
pub fn app_with(
    env: &Env,
    table: Arc<dyn Table>,
    policy: Arc<dyn Policy>,
    mail: &Letterbox,
    placement: Arc<dyn DiskPlacement>,
    cloud: Arc<dyn CloudSessions>,
    pool: Option<Pool>,
    fleet_tenant: Option<TenantId>,
) -> App {
    App::new(Parts {
        env: env.clone(),
        table,
        master: MasterSecret::new(&MASTER),
        policy,
        mailer: Arc::new(mail.clone()),
        placement,
        pool,
        fleet_tenant,
        cloud,
        issuer: ISSUER.into(),
        machine_server: None,
        trust_domain: DOMAIN.into(),
        token_generation: 0,
        disk_capability_seconds: firn_api::DISK_CAPABILITY_SECONDS,
        spread_ledger: true,
        limits: Limits::default(),
    })
    .unwrap()
}

pub fn rego() -> Arc<dyn Policy> {
    Arc::new(RegoPolicy::compile(POLICY).unwrap())
}

impl Service {
    pub fn new() -> Self {
        Self::with_policy(rego())
    }

    pub fn with_policy(policy: Arc<dyn Policy>) -> Self {
        Self::on(env(), policy)
    }

    /// On a disk of its own: for a service that also listens.
    pub fn on(env: Env, policy: Arc<dyn Policy>) -> Self {
        let (mail, fleet, table) = (Letterbox::default(), Fleet::default(), MemoryTable::new());
        let app = app_over(&env, table.connect(&env), policy, &mail, Arc::new(fleet.clone()));
        let router = router(&app);
        Self {
            app,
            router,
            mail,
            fleet,
            table,
            env,
            pool: None,
        }
    }

    /// The same storage with a pool of nodes.
    pub fn with_pool(&self, pool: Pool) -> Self {
        let pooled = Self {
            pool: Some(pool),
            ..self.under(rego())
        };
        pooled.under(rego())
    }

    /// The same storage, where this tenant's nodes are the fleet's.
    pub fn with_fleet(&self, tenant: TenantId) -> Self {
        let app = app_with(
            &self.env,
            self.table.connect(&self.env),
            rego(),
            &self.mail,
            Arc::new(self.fleet.clone()),
            Arc::new(Cloud),
            None,
            Some(tenant),
        );
        Self {
            router: router(&app),
            app,
            ..self.under(rego())
        }
    }

    /// The same storage under another policy.
    pub fn under(&self, policy: Arc<dyn Policy>) -> Self {
        self.beside(&self.env, policy, Arc::new(Cloud))
    }

    /// The same storage and the same secrets, `seconds` later (or earlier: another instance whose clock is wrong).
    pub fn after(&self, seconds: i64) -> Self {
        self.beside(&clock::shifted(&self.env, seconds), rego(), Arc::new(Cloud))
    }

    /// The same storage and clock, with disks on these nodes.
    pub fn on_nodes(self, nodes: Arc<dyn DiskPlacement>) -> Self {
        let env = self.env.clone();
        let app = app_over(&env, self.table.connect(&env), rego(), &self.mail, nodes);
        Self {
            router: router(&app),
            app,
            ..self
        }
    }

    /// The same storage in another cloud.
    pub fn with_cloud(&self, cloud: Arc<dyn CloudSessions>) -> Self {
        self.beside(&self.env, rego(), cloud)
    }

    /// Another instance over the same storage.
    fn beside(&self, env: &Env, policy: Arc<dyn Policy>, cloud: Arc<dyn CloudSessions>) -> Self {
        let placement = Arc::new(self.fleet.clone());
        let table = self.table.connect(env);
        let app = app_in(
            env,
            table,
            policy,
            &self.mail,
            placement,
            cloud,
            self.pool.clone(),
        );
        Self {
            pool: self.pool.clone(),
            router: router(&app),
            app,
            mail: self.mail.clone(),
            fleet: self.fleet.clone(),
            table: self.table.clone(),
            env: env.clone(),
        }
    }

    pub fn now(&self) -> UnixTime {
        UnixTime::from_wall(self.env.wall())
    }

    pub async fn send(&self, call: Call) -> Answer {
        call.send(&self.router).await
    }

    pub async fn get(&self, token: &str, path: &str) -> Answer {
        self.send(Call::new(Method::GET, path).token(token)).await
    }

    pub async fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.send(Call::new(Method::POST, path).token(token).json(body))
            .await
    }

    /// Signs up and gives the tenant, as a person and a client would.
    pub async fn sign_up(&self, email: &str) -> Customer {
        let phrase = RecoveryPhrase::from_entropy(self.env.random_bytes());
        let noted = self
            .send(
                Call::new(Method::POST, "/v1/signups")
                    .json(json!({ "email": email, "tenant_name": "Büro Nord" })),
            )
            .await;
        assert_eq!(noted.status, StatusCode::ACCEPTED, "{:?}", noted.body);
        let path = format!("/v1/signups/{}/confirm", noted.body["signup"].as_str().unwrap());
        let body = json!({
            "code": self.mail.find("Code"),
            "tenant_key": phrase.signing_key().public().to_string(),
            "recovery_key": phrase.recovery_secret().public().to_string(),
        });
        let welcome = self.send(Call::new(Method::POST, &path).json(body)).await;
        assert_eq!(welcome.status, StatusCode::CREATED, "{:?}", welcome.body);
        let tenant: TenantId = welcome.body["tenant"]["id"].as_str().unwrap().parse().unwrap();
        Customer {
            tenant,
            owner: welcome.body["member"]["id"].as_str().unwrap().parse().unwrap(),
            api_key: welcome.body["api_key"].as_str().unwrap().to_owned(),
            base: format!("/v1/tenants/{tenant}"),
            phrase,
        }
    }

    /// The owner's token, by the owner's key.
    pub async fn log_in(&self, customer: &Customer) -> String {
        let path = format!("{}/tokens", customer.base);
        let issued = self
            .send(Call::new(Method::POST, &path).json(json!({ "api_key": customer.api_key })))
            .await;
        assert_eq!(issued.status, StatusCode::CREATED, "{:?}", issued.body);
        issued.body["token"].as_str().unwrap().to_owned()
    }

    /// See [`token_of`].
    pub fn token(
        &self,
        tenant: TenantId,
        principal: Principal,
        role: Role,
        audience: &str,
        now: UnixTime,
    ) -> String {
        token_of(&self.env, tenant, principal, role, audience, now)
    }

    pub fn member_token(&self, tenant: TenantId, role: Role) -> String {
        self.token(
            tenant,
            Principal::Member(MemberId([7; 16])),
            role,
            AUDIENCE,
            self.now(),
        )
    }

    /// Invites and joins an edge; gives its id and certificate's name.
    pub async fn join_edge(
        &self,
        customer: &Customer,
        token: &str,
        name: &str,
    ) -> (EdgeId, PeerIdentity, JoinSecret) {
        self.join_edge_of(customer, token, name, &[]).await
    }

    /// The same, to serve volumes.
    pub async fn join_edge_of(
        &self,
        customer: &Customer,
        token: &str,
        name: &str,
        volumes: &[&str],
    ) -> (EdgeId, PeerIdentity, JoinSecret) {
        let env = self.env.clone();
        let mut entropy = |bytes: &mut [u8]| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]);
        let secret = JoinSecret::generate(&mut entropy);
        let sealed = secret.seal(b"what the edge must know", &mut entropy).unwrap();
        let mut invitation = invitation(name, &secret, &sealed);
        invitation["volumes"] = json!(volumes);
        let invited = self
            .post(token, &format!("{}/edges", customer.base), invitation)
            .await;
        assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
        let edge = secret.lookup_id().edge_id();
        let peer = PeerIdentity {
            trust_domain: DOMAIN.into(),
            kind: PeerKind::Edge {
                tenant: customer.tenant,
                edge,
            },
        };
        let path = format!("{}/joins/{}", customer.base, secret.lookup_id().to_text());
        let joined = self
            .send(Call::new(Method::POST, &path).json(join_body(&secret, &peer)))
            .await;
        assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
        (edge, peer, secret)
    }

    /// Invites and joins a node.
    pub async fn join_node(&self, customer: &Customer, token: &str, name: &str) -> (NodeId, PeerIdentity) {
        let env = self.env.clone();
        let secret = JoinSecret::generate(&mut |bytes| {
            bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()])
        });
        let body = json!({
            "name": name,
            "failure_domain": "rack-1",
            "authenticator_hash": hex(&secret.authenticator().hash().0),
        });
        let invited = self.post(token, &format!("{}/nodes", customer.base), body).await;
        assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
        let node: NodeId = invited.body["id"].as_str().unwrap().parse().unwrap();
        let named = |kind| PeerIdentity {
            trust_domain: DOMAIN.into(),
            kind,
        };
        let fleets = named(PeerKind::Node(node));
        let peer = named(PeerKind::TenantNode {
            tenant: customer.tenant,
            node,
        });
        let request = |name| base64(&certificate_request(&SigningKey::from_seed([4; 32]), name));
        let body = json!({
            "authenticator": &*secret.authenticator().expose(),
            "certificate_request": request(&fleets),
            "tenant_certificate_request": request(&peer),
            "address": "10.0.0.7:7500",
            "capacity_bytes": 1_u64 << 40,
        });
        let joined = self
            .send(Call::new(Method::POST, &format!("{}/nodes/{node}/join", customer.base)).json(body))
            .await;
        assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
        (node, peer)
    }
}

/// A token that the service itself might have issued at `now`.
pub fn token_of(
    env: &Env,
    tenant: TenantId,
    principal: Principal,
    role: Role,
    audience: &str,
    now: UnixTime,
) -> String {
    let issuer = TokenIssuer::new(ISSUER, MasterSecret::new(&MASTER).token_keys(0));
    let grant = Grant {
        audience: audience.into(),
        principal,
        tenant,
        role,
        scopes: Vec::new(),
        lifetime_seconds: 300,
    };
    let mut entropy = |bytes: &mut [u8]| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]);
    issuer.issue(&grant, now, &mut entropy).0
}

pub fn invitation(name: &str, secret: &JoinSecret, sealed: &[u8]) -> Value {
    json!({
        "name": name,
        "lookup": secret.lookup_id().to_text(),
        "authenticator_hash": hex(&secret.authenticator().hash().0),
        "sealed": base64(sealed),
    })
}

pub fn join_body(secret: &JoinSecret, peer: &PeerIdentity) -> Value {
    let recipient = RecipientSecret::derive(&[9; 32]).public();
    let request = certificate_request(&SigningKey::from_seed([3; 32]), peer);
    let bound = [recipient.to_bytes().as_slice(), &request].concat();
    json!({
        "authenticator": &*secret.authenticator().expose(),
        "recipient_key": recipient.to_string(),
        "certificate_request": base64(&request),
        "binding": hex(&secret.bind(&bound)),
    })
}

pub struct Customer {
    pub tenant: TenantId,
    pub owner: MemberId,
    pub api_key: String,
    pub base: String,
    pub phrase: RecoveryPhrase,
}

/// One request.
#[derive(Clone)]
pub struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
    peer: Option<PeerIdentity>,
    address: Option<IpAddr>,
}

impl Call {
    pub fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Vec::new(),
            peer: None,
            address: None,
        }
    }

    pub fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(name, value.parse().unwrap());
        self
    }

    pub fn json(self, body: Value) -> Self {
        self.raw("application/json", body.to_string().into_bytes())
    }

    pub fn raw(mut self, kind: &str, body: Vec<u8>) -> Self {
        self.body = body;
        self.header("content-type", kind)
    }

    /// As the listening end does for a connection with a client certificate.
    pub fn peer(mut self, peer: &PeerIdentity) -> Self {
        self.peer = Some(peer.clone());
        self
    }

    /// As the listening end does for every connection; without it, all calls are from nowhere.
    pub fn from(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    pub async fn send(self, router: &Router) -> Answer {
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .body(Body::from(self.body))
            .unwrap();
        *request.headers_mut() = self.headers;
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        if let Some(address) = self.address {
            request.extensions_mut().insert(Remote(address));
        }
        let response = router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = to_bytes(response.into_body(), 8 << 20).await.unwrap();
        let body = if bytes.is_empty() {
            Value::Null
        } else if headers["content-type"] == "text/csv" {
            Value::String(String::from_utf8(bytes.to_vec()).unwrap())
        } else {
            serde_json::from_slice(&bytes).unwrap()
        };
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(headers["content-type"], "application/problem+json");
            assert_eq!(body["status"], status.as_u16());
        }
        Answer {
            status,
            headers,
            body,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub fn text(&self, field: &str) -> String {
        self.body[field]
            .as_str()
            .unwrap_or_else(|| panic!("{field} in {:?}", self.body))
            .to_owned()
    }
}

pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

pub fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    STANDARD_NO_PAD.encode(bytes)
}

/// Whether the policy lets everybody through to an operation.
pub fn is_public(policy: &RegoPolicy, operation: &str) -> bool {
    let params = BTreeMap::new();
    policy.allows(&firn_api::Question {
        operation,
        params: &params,
        caller: None,
    })
}

/// The policy's answer for a caller of the path's tenant; `own`: an edge or a node asks about itself.
pub fn decision(policy: &RegoPolicy, operation: &str, path: &str, role: Role, own: bool) -> bool {
    let tenant = TenantId([1; 16]);
    let (edge, node) = (EdgeId([2; 16]), NodeId([3; 16]));
    let principal = match role {
        Role::Edge => Principal::Edge(edge),
        Role::Node => Principal::Node(node),
        _ => Principal::Member(MemberId([4; 16])),
    };
    let mut params = BTreeMap::from([("tenant".to_owned(), tenant.to_string())]);
    for (name, id) in [
        ("edge", if own { edge } else { EdgeId([9; 16]) }.to_string()),
        ("node", if own { node } else { NodeId([9; 16]) }.to_string()),
    ] {
        if path.contains(&format!("{{{name}}}")) {
            params.insert(name.to_owned(), id);
        }
    }
    firn_api::ask(policy, operation, &params, tenant, principal, role)
}
