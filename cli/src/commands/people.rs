//! Members and API keys.

use super::{Context, account, ask};
use crate::{
    arguments::{Key, Member},
    failure::Failure,
    profile::give_secret,
    screen::{field, note},
};
use reqwest::Method;
use serde_json::{Value, json};

pub async fn key(context: &Context, command: Key) -> Result<(), Failure> {
    let mut session = context.session().await?;
    match command {
        Key::List => {
            let keys = session.list("keys").await?;
            context.show_list(
                keys,
                &[
                    ("id", "id"),
                    ("name", "name"),
                    ("role", "role"),
                    ("scopes", "scopes"),
                    ("expires", "expires"),
                    ("revoked", "revoked"),
                ],
            )
        }
        Key::Create {
            name,
            role,
            scopes,
            days,
            secret_file,
        } => {
            let body =
                json!({ "name": name, "role": role, "scopes": scopes, "lifetime_seconds": days * 86_400 });
            let mut made = session.post("keys", &body).await?;
            if let Some(path) = give_secret(secret_file.as_deref(), &field(&made, "api_key"))? {
                made["api_key"] = Value::Null;
                made["secret_file"] = path.display().to_string().into();
            }
            context.screen.show(&made, |made| {
                let secret = match field(made, "api_key") {
                    secret if secret.is_empty() => format!("in {}", field(made, "secret_file")),
                    secret => secret,
                };
                format!(
                    "{}  {}\nshown once: {secret}\n",
                    field(made, "key.id"),
                    field(made, "key.role")
                )
            })
        }
        Key::Revoke { key } => {
            let key = session.find("keys", &key).await?;
            let path = format!("keys/{}", field(&key, "id"));
            let revoked = session.call(Method::DELETE, &path, None, None).await?.body;
            note(&format!("{} is revoked", field(&key, "id")));
            if field(&key, "id") == session.key_id()? {
                session.profile.log_out();
                session.save()?;
                note("It was the key of this profile: log in with another one.");
            }
            if context.screen.is_json() {
                context.show_one(&revoked)
            } else {
                Ok(())
            }
        }
    }
}

pub async fn member(context: &Context, command: Member) -> Result<(), Failure> {
    match command {
        Member::List => {
            let members = context.session().await?.list("members").await?;
            context.show_list(
                members,
                &[
                    ("id", "id"),
                    ("email", "email"),
                    ("role", "role"),
                    ("state", "state"),
                ],
            )
        }
        Member::Invite { email, role } => {
            let session = context.session().await?;
            let invited = session
                .post("members", &json!({ "email": email, "role": role }))
                .await?;
            note(&format!(
                "A letter is on its way. Tell them this tenant key by another way: {}",
                session.profile.tenant_key
            ));
            context.show_one(&invited)
        }
        Member::Confirm {
            server,
            tenant,
            member,
            tenant_key,
        } => {
            let (http, _) = account::connect(&server)?;
            let path = format!("/v1/tenants/{tenant}/members/{member}/confirm");
            let welcome = account::with_code(&http, &path, |code| json!({ "code": code })).await?;
            account::remember(context, server, &tenant, tenant_key, &field(&welcome, "api_key")).await?;
            context.show_one(&welcome["member"])
        }
        Member::Role { member, role } => {
            let session = context.session().await?;
            let member = session.find("members", &member).await?;
            let path = format!("members/{}", field(&member, "id"));
            let changed = session
                .call(Method::PATCH, &path, Some(&json!({ "role": role })), None)
                .await?
                .body;
            context.show_one(&changed)
        }
        Member::Remove { member, sure } => {
            let session = context.session().await?;
            let member = session.find("members", &member).await?;
            ask(
                &sure,
                &format!(
                    "{} will be removed, with all keys and tokens",
                    field(&member, "email")
                ),
            )?;
            let path = format!("members/{}", field(&member, "id"));
            session.call(Method::DELETE, &path, None, None).await?;
            note(&format!("{} was removed", field(&member, "email")));
            Ok(())
        }
    }
}
