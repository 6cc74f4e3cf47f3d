//! From an HTTP request to an operation's handler and back: the same way for every operation, in this order.
//!
//! ```text
//! match ─► parameters ─► authenticate ─► policy ─► tenant context ─► limits ─► body (bounded) ─► kept reply? ─► handler ─► reply
//!                                                                                                    └─ again if somebody was faster
//! ```

use crate::{
    app::App,
    authenticate,
    connections::{Phase, counted},
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    handlers,
    idempotency::Attempt,
    listener::{Progress, Remote},
    policy::{self, Question},
    problem::{Code, Problem},
    request_id::{self, RequestIds},
};
use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{FromRequestParts as _, RawPathParams},
    http::{HeaderMap, Request, Response, header, request::Parts},
    routing::{MethodFilter, MethodRouter},
};
use bytes::Bytes;
use firn_env::Backoff;
use firn_identity::{PeerIdentity, TenantId};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Handlers read, decide and write under the versions they read. When somebody was faster they start over, alone in this
/// instance (see [`tenant_locks`](crate::tenant_locks)); it is other instances that can be faster again, this often.
const TRIES: u32 = 12;
/// Random, so that those who collided do not collide again; growing, so that a crowd thins out.
const COLLISION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(128));
/// Half a megabyte in this time is what any line carries; who is slower holds a connection that others need.
const BODY_LIMIT: Duration = Duration::from_secs(20);
/// The longest query string: a cursor and a limit.
const MAX_QUERY_BYTES: usize = 1024;

/// All operations.
pub fn endpoints() -> Vec<Endpoint> {
    handlers::endpoints()
}

/// The service as an axum router.
pub fn router(app: &App) -> Router {
    let mut paths: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for endpoint in endpoints() {
        let filter =
            MethodFilter::try_from(endpoint.method.clone()).expect("operations use ordinary methods");
        let path = endpoint.path;
        let (app, endpoint) = (app.clone(), Arc::new(endpoint));
        let handle = move |request: Request<Body>| {
            let (app, endpoint) = (app.clone(), endpoint.clone());
            async move {
                serve(&app, &endpoint, request)
                    .await
                    .map_or_else(|problem| problem.reply(), Reply::into_response)
            }
        };
        let methods = paths.remove(path).unwrap_or_default().on(filter, handle);
        paths.insert(path, methods);
    }
    let mut router = Router::new();
    for (path, methods) in paths {
        router = router.route(path, methods);
    }
    router
        .method_not_allowed_fallback(|| async { refused(Code::MethodNotAllowed) })
        .fallback(|| async { refused(Code::NoSuchOperation) })
        .layer(axum::middleware::from_fn_with_state(
            Arc::new(RequestIds::new(app)),
            request_id::identify,
        ))
}

fn refused(code: Code) -> Response<Body> {
    Problem::new(code, "see the OpenAPI document").reply()
}

async fn serve(app: &App, endpoint: &Endpoint, request: Request<Body>) -> Result<Reply, Problem> {
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &())
        .await
        .map_err(|_| Problem::new(Code::MalformedParameter, "the path is not UTF-8"))?;
    let params: BTreeMap<String, String> = params
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let query = parse_query(parts.uri.query().unwrap_or_default(), endpoint)?;
    let tenant: Option<TenantId> = params
        .get("tenant")
        .map(|text| text.parse())
        .transpose()
        .map_err(|error| Problem::new(Code::MalformedParameter, format!("tenant: {error}")))?;

    let peer = parts.extensions.get::<PeerIdentity>().cloned();
    let caller = authenticate::caller(app, &parts.headers, peer.as_ref(), tenant).await?;
    let operation = endpoint.operation();
    let question = Question {
        operation: &operation,
        params: &params,
        caller: caller.as_ref().map(Into::into),
    };
    if !app.policy().allows(&question) {
        return Err(policy::refuse(caller.as_ref()));
    }
    let caller_tenant = caller.as_ref().map(|caller| caller.tenant);
    let remote = parts.extensions.get::<Remote>();
    let address = remote.map(|remote| counted(remote.0));
    let context = match (tenant, is_door(endpoint), caller) {
        (None, _, _) => None,
        (Some(tenant), true, _) => Some(TenantContext::at_the_door(tenant)),
        (Some(tenant), false, Some(caller)) => {
            let edge = params.get("edge").and_then(|text| text.parse().ok());
            let node = params.get("node").and_then(|text| text.parse().ok());
            Some(TenantContext::enter(caller, tenant, edge, node)?)
        }
        // Whatever the policy says: nobody goes into a tenant without having been proved.
        (Some(_), false, None) => return Err(policy::refuse(None)),
    };

    // Whoever is known uses up what their own tenant may send, whatever the path names; strangers what their address may.
    match (caller_tenant, &peer, address) {
        (Some(own), _, _) => app.limiter().admit(app.env(), own)?,
        (None, None, Some(address)) => app.limiter().admit_stranger(app.env(), address)?,
        (None, _, _) => {}
    }
    if let Some(context) = &context {
        app.counts().count(context);
    }
    let body = receive(app, endpoint, &parts, body).await?;
    let if_match = header_text(&parts.headers, header::IF_MATCH.as_str())?;
    let idempotency = match (&context, header_text(&parts.headers, "idempotency-key")?) {
        (Some(context), Some(key)) if endpoint.is_mutation() => Some(Arc::new(Attempt::new(
            app,
            context,
            &key,
            &operation,
            parts.uri.path(),
            &body,
        )?)),
        _ => None,
    };
    let call = Call {
        app: app.clone(),
        context,
        params: Arc::new(params),
        query: Arc::new(query),
        if_match,
        body,
        is_known: caller_tenant.is_some()
            || peer
                .as_ref()
                .is_some_and(|peer| peer.trust_domain == app.trust_domain()),
        peer,
        address,
        admitted: Arc::default(),
        idempotency,
    };
    perform(endpoint, call).await
}

/// Doors check a secret of their own; they are the operations of a tenant's that the policy must let everybody through.
pub(crate) fn is_door(endpoint: &Endpoint) -> bool {
    handlers::DOORS.contains(&endpoint.id)
}

async fn perform(endpoint: &Endpoint, call: Call) -> Result<Reply, Problem> {
    let lock = match &call.context {
        Some(context) if endpoint.is_mutation() => Some(call.app.tenant_locks().of(context.tenant())),
        _ => None,
    };
    for attempt in 0..TRIES {
        let guard = match &lock {
            None => None,
            Some(lock) if attempt == 0 => Some(lock.beside().await),
            Some(lock) => Some(lock.alone().await),
        };
        if let Some(idempotency) = &call.idempotency
            && let Some(reply) = idempotency.earlier(&call.app, &call.store()?).await?
        {
            return Ok(reply);
        }
        match (endpoint.handler)(call.clone()).await {
            Err(problem) if problem.code == Code::ChangedMeanwhile && attempt + 1 < TRIES => {
                drop(guard);
                COLLISION_BACKOFF.wait(call.app.env(), attempt + 1).await;
            }
            result => return result,
        }
    }
    unreachable!("the last try returns")
}

/// Reads the body, in [`BODY_LIMIT`] at most. Meanwhile the connection is one that waits for its client.
async fn receive(app: &App, endpoint: &Endpoint, parts: &Parts, body: Body) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return read_body(endpoint, &parts.headers, body).await;
    }
    let progress = parts.extensions.get::<Progress>();
    let enter = |phase| {
        if let Some(progress) = progress {
            progress.enter(phase);
        }
    };
    enter(Phase::Receiving);
    let reading = read_body(endpoint, &parts.headers, body);
    let read = app.env().timeout(BODY_LIMIT, reading).await;
    enter(Phase::Working);
    read.unwrap_or_else(|_| {
        Err(Problem::new(
            Code::BodyTimeout,
            format!(
                "it must be here within {} s; nothing was done",
                BODY_LIMIT.as_secs()
            ),
        ))
    })
}

async fn read_body(endpoint: &Endpoint, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let bytes = axum::body::to_bytes(body, endpoint.body_bytes)
        .await
        .map_err(|_| {
            Problem::new(
                Code::BodyTooLarge,
                format!("at most {} bytes are read", endpoint.body_bytes),
            )
        })?;
    if endpoint.body.is_none() {
        return if bytes.is_empty() {
            Ok(bytes)
        } else {
            Err(Problem::new(Code::MalformedBody, "this operation takes no body"))
        };
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            Code::WrongMediaType,
            "send Content-Type: application/json",
        ));
    }
    Ok(bytes)
}

fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(|text| Some(text.to_owned()))
            .map_err(|_| Problem::new(Code::MalformedHeader, format!("{name}: printable ASCII only"))),
        (Some(_), Some(_)) => Err(Problem::new(Code::MalformedHeader, format!("{name}: once only"))),
    }
}

/// `limit` and `cursor` of a list; anything else is refused, so that a misspelt filter does not look like one that works.
fn parse_query(query: &str, endpoint: &Endpoint) -> Result<BTreeMap<String, String>, Problem> {
    let malformed = |what: &str| Problem::new(Code::MalformedParameter, what.to_owned());
    if query.len() > MAX_QUERY_BYTES {
        return Err(malformed("the query is too long"));
    }
    let mut pairs = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !endpoint.is_list || !matches!(name, "limit" | "cursor") {
            return Err(malformed("this operation takes no such query parameter"));
        }
        if pairs.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(malformed("a query parameter is given twice"));
        }
    }
    Ok(pairs)
}
