//! Grants: a volume opened to an edge that was not invited to it, or to another tenant.
//!
//! ```text
//! share     owner    with the other tenant's key, told by its people ─► offer
//! accept    other    edges' keys as they were proved here ─► signed with the other tenant's phrase
//! approve   owner    signature checked against the key that was told ─► keys wrapped to these edges, ring signed ─► let in
//! decline   other    not wanted; leave: not wanted any more, refused from now on
//! revoke    owner    refused by the service first, then left out of the next key epoch; --rekey: what was written before is sealed anew
//! ```
//!
//! So the service can put neither a tenant nor an edge of its own in the place of those who were meant. An edge of the same tenant needs no
//! more than the first step.

use super::{Context, ask, edge_keys::known_key, rekey};
use crate::{
    arguments::{Offer, Share, ShareCommand},
    failure::{Exit, Failure},
    hexadecimal::{hex, unhex},
    names::Names,
    phrase, rings,
    screen::{field, note, told},
    session::Session,
};
use firn_seal::{GrantAcceptance, RecipientPublic, TenantPublic};
use reqwest::Method;
use serde_json::{Value, json};

const READ: &str = "read";
const WRITE: &str = "write";

fn access(write: bool) -> &'static str {
    if write { WRITE } else { READ }
}

pub async fn run(context: &Context, share: Share) -> Result<(), Failure> {
    let mut session = context.session().await?;
    match (share.command, share.offer) {
        (None, offered) => {
            let (Some(volume), Some(with)) = (&offered.volume, &offered.with) else {
                return Err(Failure::usage(
                    "give a volume and --with, or one of list, accept, decline, leave, approve, revoke",
                ));
            };
            offer(context, &mut session, &offered, volume, with).await
        }
        (Some(ShareCommand::List { volume }), _) => list(context, &session, volume.as_deref()).await,
        (
            Some(ShareCommand::Accept {
                grant,
                key,
                write,
                edges,
                phrase,
            }),
            _,
        ) => {
            session.tenant().await?;
            let mut proved = Vec::new();
            for edge in edges {
                let edge = session.find("edges", &edge).await?;
                proved.push((field(&edge, "id"), known_key(&mut session, &edge).await?));
            }
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            let key = (&*key, access(write));
            accept(context, &session, &grant, key, &proved, &phrase).await
        }
        (Some(ShareCommand::Decline { grant }), _) => {
            let (owner, volume) = parts(&grant)?;
            let left = leave(&session, owner, volume).await?;
            context
                .screen
                .show(&left, |_| format!("{volume} of {owner} is declined\n"))
        }
        (Some(ShareCommand::Leave { volume, sure }), _) => {
            let granted = session.list("granted").await?;
            let grant = granted
                .iter()
                .filter(|grant| grant["state"] != "left")
                .find(|grant| field(grant, "name") == volume || field(grant, "volume") == volume)
                .ok_or_else(|| {
                    Failure::new(
                        Exit::NotFound,
                        format!("no volume {volume} was granted to this tenant"),
                    )
                    .next("firn share list shows what was")
                })?;
            ask(
                &sure,
                &format!("your edges will be refused {volume} from now on, and their clients get errors"),
            )?;
            let (owner, id) = (field(grant, "owner"), field(grant, "volume"));
            let left = leave(&session, &owner, &id).await?;
            context.screen.show(&left, |_| {
                format!(
                    "{volume} of {owner} is left: your edges are refused it from now on. Its keys stay with them until the owner revokes the grant\n"
                )
            })
        }
        (
            Some(ShareCommand::Approve {
                volume,
                with,
                key,
                phrase,
            }),
            _,
        ) => {
            session.tenant().await?;
            let volume = session.find("volumes", &volume).await?;
            let key = told_key(&mut session, &volume, &with, key.as_deref())?;
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            approve(context, &mut session, &volume, &with, &key, &phrase).await
        }
        (
            Some(ShareCommand::Revoke {
                volume,
                with,
                rekey,
                phrase,
                sure,
            }),
            _,
        ) => {
            let volume = session.find("volumes", &volume).await?;
            let grantee = grantee(&session, &with).await?;
            ask(
                &sure,
                &format!(
                    "{with} will be refused {} from now on, and its clients get errors",
                    field(&volume, "name")
                ),
            )?;
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            revoke(context, &mut session, &volume, &grantee, (&phrase, rekey)).await
        }
    }
}

/// Whose grant it is, and of which volume.
fn parts(grant: &str) -> Result<(&str, &str), Failure> {
    grant.split_once('/').ok_or_else(|| {
        Failure::usage(format!(
            "{grant:?} is no grant: TENANT/VOLUME, as the owner tells it"
        ))
    })
}

async fn leave(session: &Session, owner: &str, volume: &str) -> Result<Value, Failure> {
    session
        .post("granted/leave", &json!({ "owner": owner, "volume": volume }))
        .await
}

/// The id of whom is meant; tenants are named by their ids.
async fn grantee(session: &Session, with: &str) -> Result<String, Failure> {
    if with.starts_with("ten_") {
        return Ok(with.to_owned());
    }
    Ok(field(&session.find("edges", with).await?, "id"))
}

fn path_of(volume: &Value, grantee: &str) -> String {
    format!("volumes/{}/grants/{grantee}", field(volume, "id"))
}

/// A tenant's public key as somebody typed it.
fn tenant_public(key: &str) -> Result<TenantPublic, Failure> {
    let bytes =
        unhex(key).ok_or_else(|| Failure::usage("--key: 64 hex digits, as firn whoami shows them"))?;
    Ok(TenantPublic::from_bytes(bytes))
}

/// The other tenant's key as it was told, now or when the volume was shared; never as the service shows it.
fn told_key(
    session: &mut Session,
    volume: &Value,
    tenant: &str,
    key: Option<&str>,
) -> Result<String, Failure> {
    let pin = format!("{}/{tenant}", field(volume, "id"));
    match (session.profile.grants.get(&pin), key) {
        (Some(known), None) => Ok(known.clone()),
        (Some(known), Some(key)) if known != key => Err(Failure::untrusted(format!(
            "{tenant} was noted here with another key, {known}"
        ))
        .next("if that tenant's people say so, revoke the grant and share anew")),
        (_, Some(key)) => {
            tenant_public(key)?;
            session.profile.grants.insert(pin, key.to_owned());
            session.save()?;
            Ok(key.to_owned())
        }
        (None, None) => Err(Failure::usage(format!(
            "the key of {tenant} is not known here, and the service is not believed about it"
        ))
        .next("have its people tell the tenant key that firn whoami shows there, and give it with --key")),
    }
}

async fn offer(
    context: &Context,
    session: &mut Session,
    offered: &Offer,
    volume: &str,
    with: &str,
) -> Result<(), Failure> {
    let tenant = session.tenant().await?;
    let volume = session.find("volumes", volume).await?;
    let path = format!("volumes/{}/grants", field(&volume, "id"));
    let access = access(offered.write);
    if with.starts_with("ten_") {
        let before = format!("{}/{}", field(&volume, "id"), with);
        // A grant that was revoked may be made anew for another key.
        if session
            .get(&format!("{path}/{}", with))
            .await
            .is_ok_and(|grant| grant.body["state"] == "revoked")
        {
            session.profile.grants.remove(&before);
        }
        let key = told_key(session, &volume, with, offered.key.as_deref())?;
        let body = json!({ "grantee": with, "grantee_key": key, "access": access });
        let grant = made(session, &path, &body).await?;
        let command = format!(
            "firn share accept {}/{} --key {}{} --edge EDGE",
            field(&tenant, "id"),
            field(&volume, "id"),
            session.profile.tenant_key,
            if offered.write { " --write" } else { "" }
        );
        let shown = json!({ "grant": grant, "command": command });
        return context.screen.show(&shown, |_| {
            format!(
                "{} is offered to {}, to {access}. There, have an administrator type\n\n  {command}\n\nThen, here: firn share approve {} --with {}\n",
                field(&volume, "name"),
                with,
                field(&volume, "name"),
                with
            )
        });
    }
    if offered.key.is_some() {
        return Err(Failure::usage(
            "--key is of another tenant; edges of yours are known here",
        ));
    }
    let edge = session.find("edges", with).await?;
    let public = known_key(session, &edge).await?;
    let phrase = phrase::read(offered.phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
    let id = field(&edge, "id");
    let grant = made(session, &path, &json!({ "grantee": id, "access": access })).await?;
    rings::add_edge(session, &phrase, &volume, &id, public).await?;
    let configuration = configuration(&volume, access, None);
    let shown = json!({ "grant": grant, "configuration": configuration });
    context.screen.show(&shown, |_| {
        format!(
            "edge {} may open {}. In its configuration:\n\n{configuration}\n",
            field(&edge, "name"),
            field(&volume, "name")
        )
    })
}

/// Makes a grant; the same one that is there already will do, so that an interrupted command can be repeated.
async fn made(session: &Session, path: &str, body: &Value) -> Result<Value, Failure> {
    let failure = match session.post(path, body).await {
        Ok(grant) => return Ok(grant),
        Err(failure) if failure.exit == Exit::Conflict => failure,
        Err(failure) => return Err(failure),
    };
    let there = session.get(&format!("{path}/{}", field(body, "grantee"))).await;
    match there {
        Ok(there)
            if there.body["access"] == body["access"] && there.body["grantee_key"] == body["grantee_key"] =>
        {
            Ok(there.body)
        }
        _ => Err(failure),
    }
}

/// What the configuration of an edge says of a volume that was granted to it.
fn configuration(volume: &Value, access: &str, owner: Option<(&str, &str)>) -> String {
    let id = match field(volume, "id") {
        id if id.is_empty() => field(volume, "volume"),
        id => id,
    };
    let mut lines = vec!["[volume]".to_owned(), format!("name = \"{id}\"")];
    match field(volume, "store") {
        store if store.is_empty() => {
            lines.push(
                "store = \"…\"               # where the volume lies, with credentials that read it".into(),
            );
        }
        store => {
            lines.push(format!("store = \"{store}\""));
            lines.push("credentials = \"service\"".into());
        }
    }
    lines.push("anchor = \"service\"".into());
    if let Some((tenant, key)) = owner {
        lines.push(format!("owner = \"{tenant}\""));
        lines.push(format!("owner_key = \"{key}\""));
    }
    lines.push(
        if access == WRITE {
            "shared = true"
        } else {
            "follow = true"
        }
        .into(),
    );
    lines.join("\n")
}

async fn accept(
    context: &Context,
    session: &Session,
    grant: &str,
    (key, access): (&str, &str),
    edges: &[(String, RecipientPublic)],
    phrase: &firn_seal::RecoveryPhrase,
) -> Result<(), Failure> {
    tenant_public(key)?;
    let (owner, volume) = parts(grant)?;
    let acceptance = GrantAcceptance {
        owner,
        volume,
        grantee: &session.profile.tenant,
        access,
        edges,
    };
    let signature = acceptance.sign(&phrase.signing_key());
    let named: Vec<Value> = edges
        .iter()
        .map(|(edge, public)| json!({ "edge": edge, "recipient_key": public.to_string() }))
        .collect();
    let body = json!({ "owner": owner, "volume": volume, "edges": named, "signature": hex(&signature) });
    let accepted = session.post("granted", &body).await?;
    let configuration = configuration(&accepted, access, Some((owner, key)));
    let shown = json!({ "grant": accepted, "configuration": configuration });
    context.screen.show(&shown, |shown| {
        format!(
            "{} of {owner} is accepted. The owner types: firn share approve {} --with {}\n\nIn the edge's configuration:\n\n{configuration}\n",
            field(shown, "grant.name"),
            field(shown, "grant.volume"),
            session.profile.tenant
        )
    })
}

/// The edges of an acceptance, if the tenant that was meant signed it.
fn signed_edges(
    session: &Session,
    volume: &Value,
    tenant: &str,
    key: &str,
    grant: &Value,
) -> Result<Vec<(String, RecipientPublic)>, Failure> {
    let accepted = &grant["accepted"];
    if accepted.is_null() {
        return Err(
            Failure::new(Exit::Conflict, format!("{tenant} has not accepted it yet"))
                .next("have its people type the command that firn share printed"),
        );
    }
    let untrusted = || {
        Failure::untrusted(format!(
            "what the service shows as the acceptance of {tenant} is not signed with that tenant's key; nothing was wrapped"
        ))
    };
    let mut edges = Vec::new();
    for named in accepted["edges"].as_array().into_iter().flatten() {
        let public: [u8; 32] = unhex(&field(named, "recipient_key")).ok_or_else(untrusted)?;
        let public = RecipientPublic::from_bytes(&public).map_err(|_| untrusted())?;
        edges.push((field(named, "edge"), public));
    }
    let signature: [u8; 64] = unhex(&field(accepted, "signature")).ok_or_else(untrusted)?;
    let acceptance = GrantAcceptance {
        owner: &session.profile.tenant,
        volume: &field(volume, "id"),
        grantee: tenant,
        access: &field(grant, "access"),
        edges: &edges,
    };
    match acceptance.is_of(&tenant_public(key)?, &signature) {
        true => Ok(edges),
        false => Err(untrusted()),
    }
}

async fn approve(
    context: &Context,
    session: &mut Session,
    volume: &Value,
    tenant: &str,
    key: &str,
    phrase: &firn_seal::RecoveryPhrase,
) -> Result<(), Failure> {
    let path = path_of(volume, tenant);
    let grant = session.get(&path).await?.body;
    let edges = signed_edges(session, volume, tenant, key, &grant)?;
    for (edge, public) in &edges {
        rings::add_edge(session, phrase, volume, edge, *public).await?;
    }
    let body = json!({ "edges": grant["accepted"]["edges"] });
    let approved = session.post(&format!("{path}/approve"), &body).await?;
    context.screen.show(&json!({ "grant": approved }), |_| {
        let names: Vec<&str> = edges.iter().map(|(edge, _)| edge.as_str()).collect();
        format!(
            "{tenant} may open {} with {}\n",
            field(volume, "name"),
            names.join(", ")
        )
    })
}

/// First refused by the service, then left out of the keys: in between it can do nothing.
async fn revoke(
    context: &Context,
    session: &mut Session,
    volume: &Value,
    grantee: &str,
    (phrase, rekeys): (&firn_seal::RecoveryPhrase, bool),
) -> Result<(), Failure> {
    let path = path_of(volume, grantee);
    let revoked = session.call(Method::DELETE, &path, None, None).await?.body;
    let mut rotated = false;
    for named in revoked["edges"].as_array().into_iter().flatten() {
        rotated |= rings::remove_edge(session, phrase, volume, &field(named, "edge")).await?;
    }
    let pin = format!("{}/{grantee}", field(volume, "id"));
    session.profile.grants.remove(&pin);
    session.save()?;
    let name = field(volume, "name");
    let mut shown = json!({ "grant": revoked, "new_key_epoch": rotated });
    if rekeys {
        shown["rekey"] = rekey::order(session, volume, rekey::RATE).await?;
    }
    context.screen.show(&shown, |shown| {
        let epoch = match rotated {
            true if rekeys => format!(
                "A new key epoch of {name} has begun; what was written before is sealed anew in the background, and stays readable until then to \
                 whoever kept the keys: firn volume rekey {name} --status"
            ),
            true => format!(
                "A new key epoch of {name} has begun; what was written before stays readable to whoever kept the keys, until it is sealed anew: \
                 firn volume rekey {name}"
            ),
            false => "It had no keys of the volume".into(),
        };
        format!(
            "{grantee} is refused {name} from now on; credentials of the bucket that it may hold end by {}.\n{epoch}.\n",
            told(shown, "grant.credentials_end")
        )
    })?;
    Ok(())
}

async fn list(context: &Context, session: &Session, volume: Option<&str>) -> Result<(), Failure> {
    let volumes = match volume {
        Some(volume) => vec![session.find("volumes", volume).await?],
        None => session.list("volumes").await?,
    };
    let mut given = Vec::new();
    for volume in &volumes {
        given.extend(
            session
                .list(&format!("volumes/{}/grants", field(volume, "id")))
                .await?,
        );
    }
    let taken = match volume {
        Some(_) => Vec::new(),
        None => session.list("granted").await?,
    };
    let mut names = Names::of(session, context.screen, &["edges"]).await?;
    names.add(&volumes);
    let waiting = given.iter().any(|grant| grant["state"] == "accepted");
    let left = given.iter().any(|grant| grant["state"] == "left");
    let shown = json!({ "given": given, "granted": taken });
    context.screen.show(&shown, |shown| {
        let edges = |grant: &Value| {
            let edges = grant["edges"].as_array().into_iter().flatten();
            let edges: Vec<String> = edges.map(|edge| names.get(&field(edge, "edge"))).collect();
            edges.join(", ")
        };
        let all = |kind: &str| shown[kind].as_array().cloned().unwrap_or_default();
        let mut rows = Vec::new();
        for grant in all("given") {
            rows.push(vec![
                names.get(&field(&grant, "volume")),
                format!("to {}", names.get(&field(&grant, "grantee"))),
                field(&grant, "access"),
                field(&grant, "state"),
                edges(&grant),
            ]);
        }
        for grant in all("granted") {
            rows.push(vec![
                match field(&grant, "name") {
                    name if name.is_empty() => field(&grant, "volume"),
                    name => name,
                },
                format!("from {}", field(&grant, "owner")),
                field(&grant, "access"),
                field(&grant, "state"),
                edges(&grant),
            ]);
        }
        context
            .screen
            .table(&["volume", "whom", "access", "state", "edges"], &[], &rows)
    })?;
    if waiting && !context.screen.is_json() {
        note("An acceptance waits for you: firn share approve VOLUME --with TENANT");
    }
    if left && !context.screen.is_json() {
        note(
            "Who left may have kept the keys: firn share revoke VOLUME --with TENANT begins a new key epoch",
        );
    }
    Ok(())
}
