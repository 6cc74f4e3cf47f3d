//! Signing up, logging in, and who one is.

use super::Context;
use crate::{
    arguments::{Login, Server, Signup},
    failure::{Failure, of_file},
    http::Http,
    phrase,
    profile::{Profile, read_secret},
    rings::unhex,
    screen::{field, note},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A service that was named on the command line.
pub(super) fn connect(server: &Server) -> Result<(Http, Option<String>), Failure> {
    let authority = match &server.authority {
        Some(path) => Some(std::fs::read_to_string(path).map_err(of_file(path))?),
        None => None,
    };
    Ok((Http::new(&server.server, authority.as_deref())?, authority))
}

fn profile_path(context: &Context) -> Result<PathBuf, Failure> {
    match &context.profile {
        Some(path) => Ok(path.clone()),
        None => Profile::default_path(),
    }
}

/// A profile that exists is not overwritten: it may hold join secrets and what was seen of the service.
fn require_free(path: &std::path::Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(
            Failure::usage(format!("{} exists: somebody is logged in", path.display()))
                .next("name another with --profile, or move it away"),
        );
    }
    Ok(())
}

pub async fn sign_up(context: &Context, signup: Signup) -> Result<(), Failure> {
    let path = profile_path(context)?;
    require_free(&path)?;
    let (http, authority) = connect(&signup.server)?;
    // First the keys, offline; only then does the service hear of anything.
    let phrase = phrase::make(signup.phrase_file.as_deref())?;
    let body = json!({ "email": signup.email, "tenant_name": signup.name });
    let noted = http
        .send(Method::POST, "/v1/signups", None, Some(&body), None)
        .await?
        .body;
    note(&format!("\nA letter is on its way to {}.", signup.email));
    let code = read_secret(None, "Code from the letter")?;
    let tenant_key = phrase.signing_key().public().to_string();
    let body = json!({
        "code": *code,
        "tenant_key": tenant_key,
        "recovery_key": phrase.recovery_secret().public().to_string(),
    });
    let confirm = format!("/v1/signups/{}/confirm", field(&noted, "signup"));
    let welcome = http
        .send(Method::POST, &confirm, None, Some(&body), None)
        .await?
        .body;
    if field(&welcome, "tenant.tenant_key") != tenant_key {
        return Err(Failure::untrusted(
            "the service noted another tenant key than the one made here",
        ));
    }
    let profile = Profile::new(
        signup.server.server,
        authority,
        field(&welcome, "tenant.id"),
        tenant_key,
        field(&welcome, "api_key"),
    );
    profile.save(&path)?;
    let shown = json!({ "tenant": welcome["tenant"], "member": welcome["member"], "profile": path.display().to_string() });
    context.screen.show(&shown, |shown| {
        format!(
            "tenant      {}\nowner       {}\ntenant key  {}\n\nNext: firn volume create NAME --region REGION\n",
            field(shown, "tenant.id"),
            field(shown, "member.email"),
            field(shown, "tenant.tenant_key"),
        )
    })
}

/// Stores a profile once the tenant's key is known: the one given, or the first one seen.
pub(super) async fn remember(
    context: &Context,
    server: Server,
    tenant: &str,
    given: Option<String>,
    api_key: &str,
) -> Result<Value, Failure> {
    let path = profile_path(context)?;
    require_free(&path)?;
    if let Some(key) = &given
        && unhex::<32>(key).is_none()
    {
        return Err(Failure::usage("--tenant-key has 64 hex digits"));
    }
    let (http, authority) = connect(&server)?;
    let body = json!({ "api_key": api_key });
    let base = format!("/v1/tenants/{tenant}");
    let token = http
        .send(Method::POST, &format!("{base}/tokens"), None, Some(&body), None)
        .await?
        .body;
    let token = field(&token, "token");
    let shown = http
        .send(Method::GET, &base, Some(&token), None, None)
        .await?
        .body;
    let seen = field(&shown, "tenant_key");
    if unhex::<32>(&seen).is_none() {
        return Err(Failure::untrusted("the service shows no tenant key"));
    }
    match &given {
        Some(given) if !given.eq_ignore_ascii_case(&seen) => {
            return Err(Failure::untrusted(
                "the service shows another tenant key than the one given",
            ));
        }
        Some(_) => {}
        None => note(&format!(
            "Pinned the tenant key {seen}\nas the service shows it. Compare it with an owner's (firn whoami) before wrapping keys."
        )),
    }
    Profile::new(
        server.server,
        authority,
        field(&shown, "id"),
        seen,
        api_key.to_owned(),
    )
    .save(&path)?;
    Ok(shown)
}

pub async fn log_in(context: &Context, login: Login) -> Result<(), Failure> {
    let api_key = read_secret(login.key_file.as_deref(), "API key")?;
    let tenant = remember(context, login.server, &login.tenant, login.tenant_key, &api_key).await?;
    context.show_one(&tenant)
}

pub async fn who_am_i(context: &Context) -> Result<(), Failure> {
    let session = context.session().await?;
    let tenant = session.tenant().await?;
    let shown = json!({
        "server": session.profile.server,
        "tenant": tenant["id"],
        "name": tenant["name"],
        "tenant_key": session.profile.tenant_key,
        "external_id": tenant["external_id"],
        "state": tenant["state"],
    });
    context.show_one(&shown)
}
