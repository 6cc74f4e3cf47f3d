//! The list of operations. Router, OpenAPI document, policy check and isolation matrix are all made from this one list, so an
//! operation cannot be in one and not in another.

use crate::{
    app::App,
    context::TenantContext,
    problem::{Code, Problem},
    store::{Change, Loaded, TenantStore},
    types::Listing,
};
use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Method, Response, StatusCode, header},
};
use bytes::Bytes;
use firn_identity::{PeerIdentity, Principal, Revoked};
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    str::FromStr,
    sync::{Arc, OnceLock},
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// Bodies of most operations are a few names and numbers.
const BODY_BYTES: usize = 64 << 10;
/// A list's page: enough that a person scrolls, few enough for one read of the table.
pub(crate) const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 50;

type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Result<Reply, Problem>> + Send + Sync>;
type Schemas = Vec<(String, RefOr<Schema>)>;

/// A type's schema: how it is referred to, and what it refers to.
#[derive(Clone)]
pub(crate) struct TypeSchema {
    pub(crate) name: String,
    pub(crate) all: Schemas,
}

impl TypeSchema {
    fn of<T: ToSchema>() -> Self {
        let name = T::name().into_owned();
        let mut all = vec![(name.clone(), <T as PartialSchema>::schema())];
        T::schemas(&mut all);
        Self { name, all }
    }
}

/// One operation.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) body: Option<TypeSchema>,
    pub(crate) body_bytes: usize,
    pub(crate) reply: Option<TypeSchema>,
    pub(crate) status: StatusCode,
    pub(crate) is_list: bool,
    pub(crate) is_csv: bool,
    pub(crate) has_etag: bool,
    pub(crate) takes_if_match: bool,
    pub(crate) handler: Handler,
}

impl Endpoint {
    pub(crate) fn new<F, Fut>(
        method: Method,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: F,
    ) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self {
            method,
            path,
            id,
            summary,
            body: None,
            body_bytes: BODY_BYTES,
            reply: None,
            status: StatusCode::OK,
            is_list: false,
            is_csv: false,
            has_etag: false,
            takes_if_match: false,
            handler: Arc::new(move |call| Box::pin(handler(call))),
        }
    }

    /// Its body is a `T`.
    pub(crate) fn takes<T: ToSchema>(mut self) -> Self {
        self.body = Some(TypeSchema::of::<T>());
        self
    }

    /// Its body may be this large.
    pub(crate) fn up_to(mut self, bytes: usize) -> Self {
        self.body_bytes = bytes;
        self
    }

    /// It answers with a `T`.
    pub(crate) fn gives<T: ToSchema>(mut self, status: StatusCode) -> Self {
        self.reply = Some(TypeSchema::of::<T>());
        self.status = status;
        self
    }

    /// It answers with a page of `T`.
    pub(crate) fn lists<T: ToSchema>(mut self) -> Self {
        self.reply = Some(TypeSchema::of::<T>());
        self.is_list = true;
        self
    }

    /// It answers with CSV.
    pub(crate) fn gives_csv(mut self) -> Self {
        self.is_csv = true;
        self
    }

    /// It answers without a body.
    pub(crate) fn gives_nothing(mut self) -> Self {
        self.status = StatusCode::NO_CONTENT;
        self
    }

    /// Its reply carries an entity tag.
    pub(crate) fn tagged(mut self) -> Self {
        self.has_etag = true;
        self
    }

    /// It honours If-Match.
    pub(crate) fn if_match(mut self) -> Self {
        self.takes_if_match = true;
        self
    }

    /// Method and path, as the policy's rows name it.
    pub fn operation(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Its method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Its path, with parameters in braces.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Whether it changes anything.
    pub fn is_mutation(&self) -> bool {
        self.method != Method::GET
    }
}

/// A request on its way to its handler: authenticated, allowed, read.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) context: Option<TenantContext>,
    pub(crate) params: Arc<BTreeMap<String, String>>,
    pub(crate) query: Arc<BTreeMap<String, String>>,
    pub(crate) if_match: Option<String>,
    pub(crate) body: Bytes,
    pub(crate) peer: Option<PeerIdentity>,
    /// Where it comes from, as what it counts in limits; absent where there is no connection.
    pub(crate) address: Option<IpAddr>,
    /// Whether it came with a good token or certificate.
    pub(crate) is_known: bool,
    /// What limits said of this request.
    pub(crate) admitted: Arc<OnceLock<Result<(), Problem>>>,
    /// The idempotency key's place and the request's hash.
    pub(crate) idempotency: Option<Arc<crate::idempotency::Attempt>>,
}

impl Call {
    /// The tenant the caller was let into, or at whose door it stands.
    pub(crate) fn context(&self) -> Result<&TenantContext, Problem> {
        self.context
            .as_ref()
            .ok_or_else(|| Problem::internal("an operation without a tenant asked for one"))
    }

    pub(crate) fn store(&self) -> Result<TenantStore, Problem> {
        Ok(TenantStore::of(self.app.table(), self.context()?))
    }

    /// Reads a parameter of the path.
    pub(crate) fn param<T: FromStr>(&self, name: &str) -> Result<T, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.params.get(name).ok_or_else(|| {
            Problem::internal(format!(
                "an operation asked for a parameter {name} that it has not"
            ))
        })?;
        text.parse()
            .map_err(|error| Problem::new(Code::MalformedParameter, format!("{name}: {error}")))
    }

    /// Reads the body, strictly.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let mut reader = serde_json::Deserializer::from_slice(&self.body);
        let body: T = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let field = error.path().to_string();
            let why = without_place(error.inner());
            // The path of a body that is none is a dot.
            let detail = if field == "." {
                why
            } else {
                format!("{field}: {why}")
            };
            Problem::new(Code::MalformedBody, detail)
        })?;
        reader
            .end()
            .map_err(|_| Problem::new(Code::MalformedBody, "something follows the document"))?;
        Ok(body)
    }

    /// Refuses the change if the caller named another version than the present one.
    pub(crate) fn check_if_match<T>(&self, loaded: &Loaded<T>) -> Result<(), Problem> {
        match &self.if_match {
            Some(wanted) if wanted != "*" && *wanted != loaded.etag() => Err(Problem::new(
                Code::PreconditionFailed,
                format!("it is {} now; read it again, then decide", loaded.etag()),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Asks a limit once for a request, however often its handler starts over: a collision is not another request.
    pub(crate) fn once(&self, ask: impl FnOnce() -> Result<(), Problem>) -> Result<(), Problem> {
        self.admitted.get_or_init(ask).clone()
    }

    /// Starts a change by the caller.
    pub(crate) fn change(&self, action: &'static str, target: impl ToString) -> Result<Change, Problem> {
        let principal: Option<Principal> = self.context()?.caller().map(|caller| caller.principal);
        Ok(Change::new(&self.store()?, principal, action, target))
    }

    /// Makes the change and keeps the reply for a repetition of the request.
    pub(crate) async fn commit(&self, change: Change, reply: Reply) -> Result<Reply, Problem> {
        let kept = match &self.idempotency {
            Some(attempt) => Some(attempt.keep(&self.app, &reply)?),
            None => None,
        };
        change.commit(self.app.env(), kept).await?;
        Ok(reply)
    }

    /// The same, and takes tokens back in the same transaction: there is no moment at which one is there without the other.
    pub(crate) async fn commit_revoking(
        &self,
        change: Change,
        what: &[Revoked],
        reply: Reply,
    ) -> Result<Reply, Problem> {
        let tenant = self.context()?.tenant();
        self.once(|| self.app.limiter().admit_revocation(self.app.env(), tenant))?;
        let (change, list) = self.app.revoking(tenant, change, what).await?;
        let reply = self.commit(change, reply).await?;
        self.app.install(list);
        Ok(reply)
    }

    /// The page a list was asked for: how many, after which sort key.
    pub(crate) fn page(&self, prefix: &str) -> Result<(usize, Option<String>), Problem> {
        let malformed = |what: &str| Problem::new(Code::MalformedParameter, what.to_owned());
        let limit = match self.query.get("limit") {
            None => DEFAULT_PAGE,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MAX_PAGE).contains(limit))
                .ok_or_else(|| malformed("limit: a number from 1 to 100"))?,
        };
        let after = match self.query.get("cursor") {
            None => None,
            Some(text) => {
                use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
                let after = URL_SAFE_NO_PAD
                    .decode(text)
                    .ok()
                    .and_then(|bytes| String::from_utf8(bytes).ok())
                    .filter(|after| after.starts_with(prefix) && after.len() <= 256)
                    .ok_or_else(|| {
                        malformed("cursor: give back next_cursor of the page before, unchanged")
                    })?;
                Some(after)
            }
        };
        Ok((limit, after))
    }

    /// Answers with a page of records, each shown by `show`.
    pub(crate) async fn list<R, T>(&self, prefix: &str, show: impl Fn(R) -> T) -> Result<Reply, Problem>
    where
        R: crate::store::Record,
        T: Serialize,
    {
        use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
        let (limit, after) = self.page(prefix)?;
        let (records, next) = self.store()?.page::<R>(prefix, after.as_deref(), limit).await?;
        let listing = Listing {
            items: records
                .into_iter()
                .map(|loaded| show(loaded.record))
                .collect::<Vec<_>>(),
            next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)),
        };
        Ok(Reply::json(StatusCode::OK, &listing))
    }
}

/// What a handler answers.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<String>,
    pub(crate) replayed: bool,
    pub(crate) media: &'static str,
}

const JSON: &str = "application/json";

impl Reply {
    pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Self {
        let body = serde_json::to_vec(value)
            .expect("replies have a JSON form")
            .into();
        Self {
            status,
            body,
            etag: None,
            replayed: false,
            media: JSON,
        }
    }

    pub(crate) fn csv(text: String) -> Self {
        Self {
            status: StatusCode::OK,
            body: text.into(),
            etag: None,
            replayed: false,
            media: "text/csv",
        }
    }

    pub(crate) fn nothing() -> Self {
        Self {
            status: StatusCode::NO_CONTENT,
            body: Bytes::new(),
            etag: None,
            replayed: false,
            media: JSON,
        }
    }

    pub(crate) fn tagged<T>(mut self, loaded: &Loaded<T>) -> Self {
        self.etag = Some(loaded.etag());
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let has_body = !self.body.is_empty();
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if has_body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(etag) = self.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
            headers.insert(header::ETAG, etag);
        }
        if self.replayed {
            headers.insert(
                HeaderName::from_static("idempotency-replayed"),
                HeaderValue::from_static("true"),
            );
        }
        response
    }
}
/// What a parser says, without line and column: whoever filled in a field never saw the document.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(place) => text[..place].to_owned(),
        None => text,
    }
}
