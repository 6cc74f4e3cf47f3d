//! Signing up, logging in, and who one is.

use super::Context;
use crate::{
    arguments::{Login, Server, Signup},
    failure::{Exit, Failure, of_file},
    hexadecimal::unhex,
    http::Http,
    phrase,
    profile::{Profile, read_secret},
    screen::{field, note},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Codes that somebody may type.
const CODE_TRIES: u32 = 3;

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

/// What is there of the profile, once it is certain that nobody else is logged in with it.
fn require_free(path: &std::path::Path, tenant: Option<&str>) -> Result<Option<Profile>, Failure> {
    let Some(profile) = Profile::read(path)? else {
        return Ok(None);
    };
    if profile.is_logged_in() && tenant != Some(&profile.tenant) {
        return Err(Failure::usage(format!(
            "{} is of tenant {}, which is logged in",
            path.display(),
            profile.tenant
        ))
        .next("run firn logout first, or name another profile with --profile"));
    }
    Ok(Some(profile))
}

/// Stores who is logged in now. What was seen of another tenant's keys is kept beside it: a service that shows something older later
/// is still found out.
fn replace(path: &std::path::Path, before: Option<Profile>, profile: &Profile) -> Result<(), Failure> {
    if let Some(before) = before.filter(|before| before.tenant != profile.tenant) {
        before.save(&Profile::kept_path(path, &before.tenant))?;
    }
    profile.save(path)
}

pub async fn sign_up(context: &Context, signup: Signup) -> Result<(), Failure> {
    let path = profile_path(context)?;
    let before = require_free(&path, None)?;
    let (http, authority) = connect(&signup.server)?;
    // First the keys, offline; only then does the service hear of anything.
    let phrase = phrase::make(signup.phrase_file.as_deref())?;
    let body = json!({ "email": signup.email, "tenant_name": signup.name });
    let noted = http
        .send(Method::POST, "/v1/signups", None, Some(&body), None)
        .await?
        .body;
    note(&format!("\nA letter is on its way to {}.", signup.email));
    let tenant_key = phrase.signing_key().public().to_string();
    let recovery_key = phrase.recovery_secret().public().to_string();
    let confirm = format!("/v1/signups/{}/confirm", field(&noted, "signup"));
    let welcome = with_code(
        &http,
        &confirm,
        |code| json!({ "code": code, "tenant_key": tenant_key, "recovery_key": recovery_key }),
    )
    .await?;
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
    replace(&path, before, &profile)?;
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

/// Asks for the code that came by mail and sends it; a code that was mistyped may be typed again.
pub(super) async fn with_code(
    http: &Http,
    path: &str,
    body: impl Fn(&str) -> Value,
) -> Result<Value, Failure> {
    let mut tries_left = CODE_TRIES;
    loop {
        let code = read_secret(None, "Code from the letter")?;
        tries_left -= 1;
        match http
            .send(Method::POST, path, None, Some(&body(&code)), None)
            .await
        {
            Ok(reply) => return Ok(reply.body),
            Err(failure) if failure.exit == Exit::Credentials && tries_left > 0 => {
                note(&format!(
                    "{failure}\nType it once more, as it stands in the newest letter."
                ));
            }
            Err(failure) if failure.exit == Exit::Credentials => {
                return Err(failure.next("nothing was made; ask for a new letter by the same command"));
            }
            Err(failure) => return Err(failure),
        }
    }
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
    let before = require_free(&path, Some(tenant))?;
    // What was seen of this tenant, wherever it is kept.
    let known = match &before {
        Some(profile) if profile.tenant == tenant => before.clone(),
        _ => Profile::read(&Profile::kept_path(&path, tenant))?,
    };
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
        None if known.is_some() => {}
        None => note(&format!(
            "Pinned the tenant key {seen}\nas the service shows it. Compare it with an owner's (firn whoami) before wrapping keys."
        )),
    }
    let profile = match known {
        Some(known) if known.tenant_key != seen => {
            return Err(Failure::untrusted(
                "the service shows another tenant key than the one that is pinned here",
            ));
        }
        Some(mut known) => {
            known.server = server.server;
            known.authority = authority;
            known.api_key = api_key.to_owned();
            known
        }
        None => Profile::new(
            server.server,
            authority,
            field(&shown, "id"),
            seen,
            api_key.to_owned(),
        ),
    };
    replace(&path, before, &profile)?;
    Ok(shown)
}

pub async fn log_in(context: &Context, login: Login) -> Result<(), Failure> {
    let api_key = read_secret(login.key_file.as_deref(), "API key")?;
    let tenant = remember(context, login.server, &login.tenant, login.tenant_key, &api_key).await?;
    context.show_one(&tenant)
}

/// Forgets the key of this machine; `revoke`: nobody else can use it either.
pub async fn log_out(context: &Context, revoke: bool) -> Result<(), Failure> {
    let path = profile_path(context)?;
    let mut profile = Profile::load(&path)?;
    if revoke {
        let session = context.session().await?;
        let key = session.key_id()?;
        session
            .call(Method::DELETE, &format!("keys/{key}"), None, None)
            .await?;
    }
    profile.log_out();
    profile.save(&path)?;
    note(&format!(
        "Logged out of tenant {}{}. What was seen of its keys stays in {}.",
        profile.tenant,
        if revoke { "; the key is revoked" } else { "" },
        path.display()
    ));
    Ok(())
}

pub async fn who_am_i(context: &Context) -> Result<(), Failure> {
    let session = context.session().await?;
    let tenant = session.tenant().await?;
    let shown = json!({
        "server": session.profile.server,
        "tenant": tenant["id"],
        "name": tenant["name"],
        "acts_as": session.principal,
        "role": session.role,
        "key": session.key_id()?,
        "tenant_key": session.profile.tenant_key,
        "external_id": tenant["external_id"],
        "state": tenant["state"],
    });
    context.show_one(&shown)
}
