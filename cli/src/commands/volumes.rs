//! Volumes and their snapshot policies.

use super::{Context, ask, rekey, wait_for};
use crate::{
    arguments::{Snapshot, Volume},
    failure::{Exit, Failure},
    names::Names,
    phrase, rings,
    screen::{field, note},
    session::Session,
};
use reqwest::Method;
use serde_json::{Value, json};

/// Values of a volume's `leases`, as the service names them.
const LEASES_VOLUME: &str = "volume";
pub(super) const LEASES_INODE: &str = "inode";

pub async fn run(context: &Context, command: Volume) -> Result<(), Failure> {
    let mut session = context.session().await?;
    match command {
        Volume::List => {
            let volumes = session.list("volumes").await?;
            context.show_list(
                volumes,
                &[
                    ("id", "id"),
                    ("name", "name"),
                    ("state", "state"),
                    ("bucket", "bucket.kind"),
                    ("keys", "key_ring_generation"),
                ],
            )
        }
        Volume::Create {
            name,
            region,
            bucket,
            role,
            leases,
            phrase,
        } => {
            session.tenant().await?;
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            let bucket = match (region, bucket) {
                (Some(region), _) => json!({ "kind": "managed", "region": region }),
                (None, Some(url)) => json!({ "kind": "own", "url": url, "role": role }),
                (None, None) => return Err(Failure::usage("give --region or --bucket")),
            };
            let made = make(&session, &name, &bucket, &leases).await?;
            rings::put_first(&mut session, &phrase, &made).await?;
            // Reads the ring back: what the service keeps must be what was signed.
            let made = session.with_id("volumes", &field(&made, "id")).await?;
            rings::fetch(&mut session, &made).await?;
            context.show_one(&made)
        }
        Volume::Show { volume } => show(context, &mut session, &volume).await,
        Volume::Members { volume } => members(context, &session, &volume).await,
        Volume::Rotate { volume, phrase } => {
            let volume = session.find("volumes", &volume).await?;
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            rings::rotate(&mut session, &phrase, &volume).await?;
            show(context, &mut session, &field(&volume, "id")).await
        }
        Volume::Rekey {
            volume,
            status,
            stop,
            rate,
        } => {
            let asked = match (status, stop) {
                (true, _) => rekey::Asked::Status,
                (false, true) => rekey::Asked::Stop,
                (false, false) => rekey::Asked::Start { rate },
            };
            rekey::run(context, &mut session, &volume, asked).await
        }
        Volume::Rename { volume, name } => {
            let volume = session.find("volumes", &volume).await?;
            change(context, &session, &volume, &json!({ "name": name })).await
        }
        Volume::Delete { volume, sure } => {
            let volume = session.find("volumes", &volume).await?;
            let serving = serving(&session, &field(&volume, "id")).await?;
            let warning = match &*serving {
                [] => String::new(),
                edges => format!(
                    "; {} stops serving it, and its clients get errors until it is undeleted",
                    edges.join(" and ")
                ),
            };
            ask(
                &sure,
                &format!("Volume {} will be deleted{warning}", field(&volume, "name")),
            )?;
            let path = format!("volumes/{}", field(&volume, "id"));
            let deleted = session.call(Method::DELETE, &path, None, None).await?.body;
            context.show_one(&deleted)
        }
        Volume::Undelete { volume } => {
            let volume = session.find("volumes", &volume).await?;
            let path = format!("volumes/{}/undelete", field(&volume, "id"));
            context.show_one(&session.post(&path, &json!({})).await?)
        }
        Volume::Prove { volume } => {
            let volume = session.find("volumes", &volume).await?;
            let path = format!("volumes/{}/prove", field(&volume, "id"));
            context.show_one(&session.post(&path, &json!({})).await?)
        }
        Volume::Erase { volume, sure, wait } => {
            let volume = session.find("volumes", &volume).await?;
            ask(
                &sure,
                &format!(
                    "The keys of volume {} will be erased for ever",
                    field(&volume, "name")
                ),
            )?;
            let path = format!("volumes/{}/erase", field(&volume, "id"));
            let erasing = session.post(&path, &json!({})).await?;
            if !wait.wait {
                return context.show_one(&erasing);
            }
            let name = field(&volume, "name");
            wait_for(&session, &field(&erasing, "operation"), &name, &wait).await?;
            let path = format!("volumes/{}", field(&volume, "id"));
            context.show_one(&session.get(&path).await?.body)
        }
    }
}

/// The names of the edges that serve a volume.
async fn serving(session: &Session, volume: &str) -> Result<Vec<String>, Failure> {
    let serves = |edge: &&Value| {
        let volumes = edge["volumes"].as_array().into_iter().flatten();
        edge["state"] == "active" && volumes.into_iter().any(|id| id == volume)
    };
    let edges = session.list("edges").await?;
    Ok(edges
        .iter()
        .filter(serves)
        .map(|edge| format!("edge {}", field(edge, "name")))
        .collect())
}

/// Makes a volume without keys, which are signed for its id; one that was left so by an interrupted command is taken up.
async fn make(session: &Session, name: &str, bucket: &Value, leases: &str) -> Result<Value, Failure> {
    let mut body = json!({ "name": name, "bucket": bucket });
    // A service of the release before knows no such field, and makes volumes of the other kind.
    if leases != LEASES_VOLUME {
        body["leases"] = leases.into();
    }
    let failure = match session.post("volumes", &body).await {
        Ok(made) => return Ok(made),
        Err(failure) if failure.exit == Exit::Conflict => failure,
        Err(failure) => return Err(failure),
    };
    let Ok(there) = session.find("volumes", name).await else {
        return Err(failure);
    };
    let is_ours = there["key_ring_generation"] == 0
        && there["state"] == "active"
        && there["leases"].as_str().unwrap_or(LEASES_VOLUME) == leases
        && bucket
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| there["bucket"][key] == *value);
    if is_ours { Ok(there) } else { Err(failure) }
}

/// The offices that write it, as the anchor has them.
async fn members(context: &Context, session: &Session, volume: &str) -> Result<(), Failure> {
    let volume = session.find("volumes", volume).await?;
    if volume["leases"] != LEASES_INODE {
        return Err(Failure::usage(format!(
            "volume {} has no members: one edge at a time writes it",
            field(&volume, "name")
        ))
        .next("which one: firn status"));
    }
    let path = format!("volumes/{}/members", field(&volume, "id"));
    let members = session.list(&path).await?;
    let is_broken = members.iter().any(|member| member["state"] == "broken");
    context.show_list(
        members,
        &[
            ("member", "number"),
            ("edge", "name"),
            ("state", "state"),
            ("last commit", "last_commit"),
        ],
    )?;
    if is_broken {
        note(
            "broken: it was not heard for a minute while others waited for it. Start its edge again: what stands on others' changes goes into a salvage clone, all else on",
        );
    }
    Ok(())
}

async fn show(context: &Context, session: &mut Session, volume: &str) -> Result<(), Failure> {
    let volume = session.find("volumes", volume).await?;
    let mut shown = volume.clone();
    let names = Names::of(session, context.screen, &["edges"]).await?;
    // The rings of one that is erased, or about to be, are gone or going: that there are none is what was asked for.
    let is_erased = matches!(volume["state"].as_str(), Some("erasing" | "erased"));
    let ring = match is_erased {
        true => None,
        false => rings::fetch(session, &volume).await?,
    };
    let recipients: Vec<Value> = match ring {
        Some(ring) => ring
            .recipients()
            .iter()
            .map(|recipient| format!("{} {}", names.get(&recipient.name), recipient.public).into())
            .collect(),
        None => Vec::new(),
    };
    shown["keys_wrapped_to"] = Value::Array(recipients);
    if !volume["rekey"].is_null() && !context.screen.is_json() {
        let edges = rekey::serving(session, &volume).await?;
        shown["rekey"] = rekey::lines(&volume, &edges).join("; ").into();
    }
    context.show_one(&shown)
}

async fn change(context: &Context, session: &Session, volume: &Value, body: &Value) -> Result<(), Failure> {
    let path = format!("volumes/{}", field(volume, "id"));
    let etag = session.get(&path).await?.etag;
    let changed = session
        .call(Method::PATCH, &path, Some(body), etag.as_deref())
        .await?
        .body;
    context.show_one(&changed)
}

pub async fn snapshot(context: &Context, command: Snapshot) -> Result<(), Failure> {
    let session = context.session().await?;
    match command {
        Snapshot::Show { volume } => {
            let volume = session.find("volumes", &volume).await?;
            context.show_one(&volume["snapshot_policy"])
        }
        Snapshot::Policy {
            volume,
            last,
            hourly,
            daily,
            weekly,
            monthly,
        } => {
            let found = session.find("volumes", &volume).await?;
            let path = format!("volumes/{}", field(&found, "id"));
            // The version that is changed is the version that was read.
            let read = session.get(&path).await?;
            let mut policy = read.body["snapshot_policy"].clone();
            for (name, value) in [
                ("last", last),
                ("hourly", hourly),
                ("daily", daily),
                ("weekly", weekly),
                ("monthly", monthly),
            ] {
                if let Some(value) = value {
                    policy[name] = value.into();
                }
            }
            let body = json!({ "snapshot_policy": policy });
            let changed = session
                .call(Method::PATCH, &path, Some(&body), read.etag.as_deref())
                .await?
                .body;
            context.show_one(&changed["snapshot_policy"])
        }
    }
}
