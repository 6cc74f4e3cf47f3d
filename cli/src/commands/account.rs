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
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Codes that somebody may type.
const CODE_TRIES: u32 = 3;
/// The borders of a certificate in PEM (RFC 7468 §5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// A service that was named on the command line.
pub(super) fn connect(server: &Server) -> Result<(Http, Option<String>), Failure> {
    let authority = match (&server.authority, &server.authority_der) {
        (Some(path), _) => Some(std::fs::read_to_string(path).map_err(of_file(path))?),
        (None, Some(der)) => Some(pem_of_der(der)?),
        (None, None) => None,
    };
    Ok((Http::new(&server.server, authority.as_deref())?, authority))
}

/// The first certificate of a PEM file as DER in base64 without padding, on one line: what stands between its borders.
pub(super) fn der_of_pem(pem: &str) -> String {
    let lines = pem.lines().map(str::trim);
    let inside = lines.skip_while(|line| *line != BEGIN).skip(1);
    let text: String = inside.take_while(|line| *line != END).collect();
    text.trim_end_matches('=').to_owned()
}

/// The same backwards.
fn pem_of_der(der: &str) -> Result<String, Failure> {
    let none = || Failure::usage("--authority-der is no certificate in base64; copy the whole command");
    let der = STANDARD_NO_PAD
        .decode(der.trim_end_matches('='))
        .map_err(|_| none())?;
    let lines: Vec<String> = STANDARD
        .encode(der)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    Ok(format!("{BEGIN}\n{}\n{END}\n", lines.join("\n")))
}

pub(super) fn profile_path(context: &Context) -> Result<PathBuf, Failure> {
    match &context.profile {
        Some(path) => Ok(path.clone()),
        None => Profile::default_path(),
    }
}

/// What is there of the profile, once it is certain that nobody else is logged in with it.
pub(super) fn require_free(path: &std::path::Path, tenant: Option<&str>) -> Result<Option<Profile>, Failure> {
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
pub(super) fn replace(
    path: &std::path::Path,
    before: Option<Profile>,
    profile: &Profile,
) -> Result<(), Failure> {
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
                    "{}\nType it once more, as it stands in the newest letter.",
                    failure.what()
                ));
            }
            Err(failure) if failure.exit == Exit::Credentials => {
                return Err(failure.next("nothing was made; ask for a new letter by the same command"));
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// What was seen of a tenant, in the profile that is there or in one that is kept beside it.
pub(super) fn seen_before(
    path: &std::path::Path,
    before: Option<&Profile>,
    tenant: &str,
) -> Result<Option<Profile>, Failure> {
    match before {
        Some(profile) if profile.tenant == tenant => Ok(Some(profile.clone())),
        _ => Profile::read(&Profile::kept_path(path, tenant)),
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
    let known = seen_before(&path, before.as_ref(), tenant)?;
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
    let found = Profile::new(
        server.server,
        authority,
        field(&shown, "id"),
        seen,
        api_key.to_owned(),
    );
    replace(&path, before, &continued(known, found)?)?;
    Ok(shown)
}

/// A profile that was just made, with what was seen of its tenant before.
pub(super) fn continued(known: Option<Profile>, found: Profile) -> Result<Profile, Failure> {
    match known {
        Some(known) if known.tenant_key != found.tenant_key => Err(Failure::untrusted(
            "the service shows another tenant key than the one that is pinned here",
        )),
        Some(mut known) => {
            known.server.clone_from(&found.server);
            known.authority.clone_from(&found.authority);
            known.api_key.clone_from(&found.api_key);
            Ok(known)
        }
        None => Ok(found),
    }
}

pub async fn log_in(context: &Context, login: Login) -> Result<(), Failure> {
    let api_key = read_secret(login.key_file.as_deref(), "API key")?;
    let server = login.server.server.clone();
    let tenant = remember(context, login.server, &login.tenant, login.tenant_key, &api_key)
        .await
        .map_err(|failure| match failure.exit {
            Exit::Credentials => failure.next(format!(
                "an owner can make you a key: firn key create NAME; an owner who has none left: firn recover --server {server} --email ADDRESS"
            )),
            _ => failure,
        })?;
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

/// What this machine remembers, without asking anybody, and without its secrets.
pub fn config(context: &Context, authority: bool) -> Result<(), Failure> {
    let path = profile_path(context)?;
    let Some(profile) = Profile::read(&path)? else {
        return Err(
            Failure::new(Exit::Credentials, format!("{} is not there", path.display()))
                .next("run: firn login --server URL --tenant ID   (or firn signup)"),
        );
    };
    if authority {
        let pem = profile.authority.as_deref().ok_or_else(|| {
            Failure::new(
                Exit::NotFound,
                "the profile trusts the system's authorities; there is none to print",
            )
        })?;
        return context.screen.print(pem);
    }
    let pins: Vec<&str> = profile.volumes.values().map(|pin| &*pin.name).collect();
    let shown = json!({
        "profile": path.display().to_string(),
        "server": profile.server,
        "authority": if profile.authority.is_some() { "its own (firn config --authority)" } else { "the system's" },
        "tenant": profile.tenant,
        "tenant_key": profile.tenant_key,
        "logged_in": profile.is_logged_in(),
        "volumes_seen": pins,
        "edges_to_approve": profile.invitations.keys().collect::<Vec<_>>(),
        "audit_log_seen_to": profile.audit_head.as_ref().map(|(sequence, _)| sequence),
    });
    context.show_one(&shown)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_travels_on_a_command_line() {
        let body = "QUJD".repeat(40);
        let pem = format!(
            "comment\n{BEGIN}\n{}\n{}\n{}\n{END}\n",
            &body[..64],
            &body[64..128],
            &body[128..]
        );
        let der = der_of_pem(&pem);
        assert_eq!(der, body);
        assert_eq!(pem_of_der(&der).unwrap(), pem.trim_start_matches("comment\n"));
        assert!(pem_of_der("not base64!").is_err());
    }
}
