//! A logged-in session: the profile, and a token that lives as long as the command.

use crate::{
    failure::{Exit, Failure},
    http::{Http, Reply},
    profile::Profile,
    screen::field,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Pages of one list: ten million entries, after which something is wrong.
const PAGES_MAX: usize = 100_000;

pub struct Session {
    pub profile: Profile,
    path: PathBuf,
    http: Http,
    token: Zeroizing<String>,
    /// Whom the token speaks for, by its id.
    pub principal: String,
    /// What it may do.
    pub role: String,
}

impl Session {
    /// Logs in with the profile's key.
    pub async fn open(path: Option<PathBuf>) -> Result<Self, Failure> {
        let path = match path {
            Some(path) => path,
            None => Profile::default_path()?,
        };
        let profile = Profile::load(&path)?;
        let http = Http::new(&profile.server, profile.authority.as_deref())?;
        let body = json!({ "api_key": profile.api_key });
        let base = format!("/v1/tenants/{}/tokens", profile.tenant);
        let reply = http.send(Method::POST, &base, None, Some(&body), None).await?;
        let token = Zeroizing::new(field(&reply.body, "token"));
        Ok(Self {
            profile,
            path,
            http,
            token,
            principal: field(&reply.body, "principal"),
            role: field(&reply.body, "role"),
        })
    }

    /// The id of the profile's key.
    pub fn key_id(&self) -> Result<String, Failure> {
        let key = firn_identity::ApiKey::parse(&self.profile.api_key);
        Ok(key
            .map_err(|_| Failure::usage("the profile's key is none; log in again"))?
            .id()
            .to_string())
    }

    /// Where the profile lies, and what else this machine keeps for it.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// The installation's name in certificates.
    pub async fn trust_domain(&self) -> Result<String, Failure> {
        let health = self.http.send(Method::GET, "/healthz", None, None, None).await?;
        Ok(field(&health.body, "trust_domain"))
    }

    /// Where machines call that are invited or get a ticket: behind a gateway it can be another address than people's.
    pub async fn machine_server(&self) -> Result<String, Failure> {
        let health = self.http.send(Method::GET, "/healthz", None, None, None).await?;
        match health.body["machine_server"].as_str() {
            // Whoever is asked over TLS does not send anybody elsewhere without it.
            Some(server) if server.starts_with("https://") || self.profile.server.starts_with("http://") => {
                Ok(server.to_owned())
            }
            Some(server) => Err(Failure::failed(format!(
                "the service sends machines to {server}, which is not https; nothing was done. Its operator gives `firn-api serve --machine-server`"
            ))),
            None => Ok(self.profile.server.clone()),
        }
    }

    pub fn save(&self) -> Result<(), Failure> {
        self.profile.save(&self.path)
    }

    /// The tenant, whose key must be the pinned one.
    pub async fn tenant(&self) -> Result<Value, Failure> {
        let tenant = self.get("").await?.body;
        if field(&tenant, "tenant_key") != self.profile.tenant_key {
            return Err(Failure::untrusted(
                "the service shows another tenant key than the one that is pinned here",
            ));
        }
        Ok(tenant)
    }

    /// A path below the tenant's.
    fn path(&self, path: &str) -> String {
        let slash = if path.is_empty() { "" } else { "/" };
        format!("/v1/tenants/{}{slash}{path}", self.profile.tenant)
    }

    pub async fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.http
            .send(Method::GET, &self.path(path), Some(&self.token), None, None)
            .await
    }

    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
    ) -> Result<Reply, Failure> {
        self.http
            .send(method, &self.path(path), Some(&self.token), body, if_match)
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        Ok(self.call(Method::POST, path, Some(body), None).await?.body)
    }

    /// All pages of a list.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let query = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
            let page = self.get(&format!("{path}?limit=100{query}")).await?.body;
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(items),
            }
        }
        Err(Failure::failed(format!("the list of {path} does not end")))
    }

    /// The thing with exactly this id: where an id was pinned, another thing of that name will not do.
    pub async fn with_id(&self, kind: &str, id: &str) -> Result<Value, Failure> {
        let found = self.get(&format!("{kind}/{id}")).await?.body;
        if field(&found, "id") == id {
            return Ok(found);
        }
        Err(Failure::untrusted(format!(
            "asked for {id}, the service shows another of the {kind}"
        )))
    }

    /// The thing that somebody named by its id or by its name (of a member: the address). Of several with a name the one that is
    /// not gone; one that is gone only if it is the only one, so that an interrupted removal can be repeated.
    pub async fn find(&self, kind: &str, wanted: &str) -> Result<Value, Failure> {
        let items = self.list(kind).await?;
        let id = items.iter().find(|item| item["id"] == *wanted);
        let gone = |item: &&Value| {
            matches!(item["state"].as_str(), Some("erased" | "revoked")) || item["revoked"] == true
        };
        let named: Vec<&Value> = items
            .iter()
            .filter(|item| item["name"] == *wanted || item["email"] == *wanted)
            .collect();
        let living: Vec<&Value> = named.iter().copied().filter(|item| !gone(item)).collect();
        let mut candidates = match (&*living, &*named) {
            ([], [only]) => vec![*only],
            _ => living,
        }
        .into_iter();
        let first = candidates.next();
        match (id, first, candidates.next()) {
            (Some(item), ..) | (None, Some(item), None) => Ok(item.clone()),
            (None, None, _) => Err(Failure::new(
                Exit::NotFound,
                format!("there is no {wanted:?} among the {kind}"),
            )
            .next(format!("firn {} list shows them", kind.trim_end_matches('s')))),
            (None, Some(_), Some(_)) => {
                Err(Failure::usage(format!("{wanted:?} names several {kind}")).next("give the id instead"))
            }
        }
    }
}
