//! Virtual disks, and the nodes that keep their data.

use super::{Context, ask, attach, disk_snapshots, finish};
use crate::{
    arguments::{Disk, Node},
    failure::Failure,
    hexadecimal::hex,
    profile::give_secret,
    random::filled,
    screen::field,
};
use firn_identity::JoinSecret;
use firn_quantity::Size;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;

pub async fn run(context: &Context, command: Disk) -> Result<(), Failure> {
    let command = match command {
        Disk::Attach(wanted) => return attach::attach(context, wanted).await,
        Disk::Detach(wanted) => return attach::detach(context, wanted).await,
        Disk::Snapshot(wanted) => return disk_snapshots::run(context, wanted).await,
        Disk::Restore(wanted) => return disk_snapshots::restore(context, wanted).await,
        other => other,
    };
    let session = context.session().await?;
    match command {
        Disk::Attach(_) | Disk::Detach(_) | Disk::Snapshot(_) | Disk::Restore(_) => {
            unreachable!("they have sessions of their own")
        }
        Disk::List => {
            let disks = session.list("disks").await?;
            context.screen.show(&Value::Array(disks), |disks| {
                let row = |disk: &Value| {
                    let size = Size(disk["size_bytes"].as_u64().unwrap_or(0)).to_string();
                    vec![
                        field(disk, "id"),
                        field(disk, "name"),
                        size,
                        field(disk, "replicas"),
                        field(disk, "state"),
                        field(disk, "attached.holder"),
                    ]
                };
                let rows: Vec<_> = disks.as_array().into_iter().flatten().map(row).collect();
                context.screen.table(
                    &["id", "name", "size", "copies", "state", "attached by"],
                    &[2, 3],
                    &rows,
                )
            })
        }
        Disk::Create {
            name,
            size,
            replicas,
            wait,
        } => {
            let body = json!({ "name": name, "size_bytes": size.0, "replicas": replicas });
            let change = session.post("disks", &body).await?;
            finish(context, &session, change, "disk", &wait).await
        }
        Disk::Show { disk } => context.show_one(&session.find("disks", &disk).await?),
        Disk::Grow { disk, size, wait } => {
            let disk = session.find("disks", &disk).await?;
            let path = format!("disks/{}/grow", field(&disk, "id"));
            let change = session.post(&path, &json!({ "size_bytes": size.0 })).await?;
            finish(context, &session, change, "disk", &wait).await
        }
        Disk::Delete { disk, sure, wait } => {
            let disk = session.find("disks", &disk).await?;
            ask(
                &sure,
                &format!("Disk {} and all on it will be removed", field(&disk, "name")),
            )?;
            let path = format!("disks/{}", field(&disk, "id"));
            let change = session.call(Method::DELETE, &path, None, None).await?.body;
            finish(context, &session, change, "disk", &wait).await
        }
    }
}

pub async fn node(context: &Context, command: Node) -> Result<(), Failure> {
    match command {
        Node::List => {
            let nodes = context.session().await?.list("nodes").await?;
            context.show_list(
                nodes,
                &[
                    ("id", "id"),
                    ("name", "name"),
                    ("domain", "failure_domain"),
                    ("state", "state"),
                    ("address", "address"),
                    ("free", "free_bytes"),
                    ("last seen", "last_seen"),
                ],
            )
        }
        Node::Create {
            name,
            failure_domain,
            secret_file,
        } => create_node(context, &name, &failure_domain, secret_file.as_deref()).await,
        Node::Show { node } => {
            let node = context.session().await?.find("nodes", &node).await?;
            context.show_one(&node)
        }
        Node::Drain { node, sure } => {
            let session = context.session().await?;
            let node = session.find("nodes", &node).await?;
            ask(
                &sure,
                &format!(
                    "Node {} will take nothing new and be emptied",
                    field(&node, "name")
                ),
            )?;
            let path = format!("nodes/{}", field(&node, "id"));
            context.show_one(&session.call(Method::DELETE, &path, None, None).await?.body)
        }
    }
}

async fn create_node(
    context: &Context,
    name: &str,
    domain: &str,
    secret_file: Option<&Path>,
) -> Result<(), Failure> {
    let session = context.session().await?;
    let secret = JoinSecret::generate(&mut filled);
    let body = json!({
        "name": name,
        "failure_domain": domain,
        "authenticator_hash": hex(&secret.authenticator().hash().0),
    });
    let made = session.post("nodes", &body).await?;
    let text = secret.expose();
    let file = give_secret(secret_file, &text)?;
    let shown = json!({
        "node": made,
        "secret": if file.is_some() { Value::Null } else { text.to_string().into() },
        "secret_file": file.map(|path| path.display().to_string()),
    });
    context.screen.show(&shown, |shown| {
        let secret = match field(shown, "secret") {
            secret if secret.is_empty() => format!("its secret is in {}", field(shown, "secret_file")),
            secret => format!("its secret (one use, one hour): {secret}"),
        };
        format!("node  {}\n{secret}\n", field(shown, "node.id"))
    })
}
