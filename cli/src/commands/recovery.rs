//! Account recovery: an owner without any key gets in again by the recovery phrase and a letter.
//!
//! The phrase stays here: it signs what is claimed, and its public key is what the service must show for the tenant afterwards. So
//! nothing that the service says is believed, unlike at a first log-in.

use super::{Context, account};
use crate::{
    arguments::Recover,
    failure::{Exit, Failure},
    hexadecimal::hex,
    phrase,
    profile::Profile,
    screen::{field, note},
};
use firn_seal::RecoveryClaim;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

/// Tokens that are issued in the second in which the old keys were revoked are refused with theirs.
const ACCEPTED_TRIES: u32 = 10;
const ACCEPTED_PAUSE: Duration = Duration::from_millis(500);

/// Waits until the new key is one to work with.
async fn until_accepted(context: &Context) -> Result<(), Failure> {
    for _ in 1..ACCEPTED_TRIES {
        match context.session().await?.tenant().await {
            Err(failure) if failure.exit == Exit::Credentials => tokio::time::sleep(ACCEPTED_PAUSE).await,
            Err(failure) => return Err(failure),
            Ok(_) => return Ok(()),
        }
    }
    context.session().await?.tenant().await.map(drop)
}

pub async fn recover(context: &Context, wanted: Recover) -> Result<(), Failure> {
    let path = account::profile_path(context)?;
    let phrase = phrase::read_any(wanted.phrase.phrase_file.as_deref())?;
    let key = phrase.signing_key();
    let tenant_key = key.public().to_string();
    // A profile of the same tenant is replaced, also if its key is still believed in; another's is not.
    let own = Profile::read(&path)?.filter(|profile| profile.tenant_key == tenant_key);
    let before = account::require_free(&path, own.as_ref().map(|profile| &*profile.tenant))?;
    let (http, authority) = account::connect(&wanted.server)?;
    let health = http.send(Method::GET, "/healthz", None, None, None).await?.body;
    let trust_domain = field(&health, "trust_domain");
    let claim = RecoveryClaim::Asked {
        trust_domain: &trust_domain,
        email: &wanted.email,
    };
    let mut body = json!({
        "tenant_key": tenant_key,
        "email": wanted.email,
        "signature": hex(&claim.sign(&key)),
    });
    if let Some(tenant) = &wanted.tenant {
        body["tenant"] = tenant.as_str().into();
    }
    let noted = http
        .send(Method::POST, "/v1/recoveries", None, Some(&body), None)
        .await
        .map_err(|failure| match failure.exit {
            Exit::Credentials => failure.next(
                "no letter was sent; check address and phrase. A tenant that was made with an earlier version is named by --tenant",
            ),
            _ => failure,
        })?
        .body;
    note(&format!("A letter is on its way to {}.", wanted.email));
    let (recovery, tenant) = (field(&noted, "recovery"), field(&noted, "tenant"));
    let confirm = format!("/v1/tenants/{tenant}/recoveries/{recovery}/confirm");
    let recovered = account::with_code(&http, &confirm, |code| {
        let claim = RecoveryClaim::Confirmed {
            trust_domain: &trust_domain,
            recovery: &recovery,
            code,
        };
        json!({ "code": code, "signature": hex(&claim.sign(&key)) })
    })
    .await?;
    if field(&recovered, "tenant.tenant_key") != tenant_key || field(&recovered, "tenant.id") != tenant {
        return Err(Failure::untrusted(
            "the service shows another tenant than the one of this recovery phrase",
        ));
    }
    let known = account::seen_before(&path, before.as_ref(), &tenant)?;
    let found = Profile::new(
        wanted.server.server,
        authority,
        tenant,
        tenant_key,
        field(&recovered, "api_key"),
    );
    account::replace(&path, before, &account::continued(known, found)?)?;
    until_accepted(context).await?;
    let shown = json!({
        "tenant": recovered["tenant"],
        "member": recovered["member"],
        "revoked_keys": recovered["revoked_keys"],
        "profile": path.display().to_string(),
    });
    context.screen.show(&shown, |shown| {
        let revoked: Vec<&str> = shown["revoked_keys"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let revoked = if revoked.is_empty() {
            "none was left".to_owned()
        } else {
            revoked.join(", ")
        };
        format!(
            "You are in again, as an owner.\ntenant        {}\nowner         {}\ntenant key    {}\nrevoked keys  {revoked}\n\n\
             Next: firn key list shows what else can log in, firn audit list what was done meanwhile\n",
            field(shown, "tenant.name"),
            field(shown, "member.email"),
            field(shown, "tenant.tenant_key"),
        )
    })
}
